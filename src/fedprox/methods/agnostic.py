"""Agnostic federated learning (Mohri, Sivek and Suresh, 2019), with devices as its groups.

The model is to be good for the worst mixture of the devices' data:

    minimise over w the maximum over lambda in the simplex of sum_k lambda_k F_k(w)

by turns: a step on w for the current mixture, and a step of lambda towards devices with a high loss. Here the step on w
is a round of FedProx whose average has the mixture's weights, and that on lambda is multiplicative (the source's
algorithm with the entropy as mirror map, which keeps lambda positive and needs no projection over all devices):

    w^{t+1} = sum_k weight_k s_k w_k / sum_k weight_k s_k,        lambda_k in proportion to p_k s_k
    s_k <- s_k exp(mixture_step (F_k(w^t) - level))

over the round's devices. Each remembers its log s_k, at first 0. A level that is common to all devices cancels in
lambda; it is the weighted mean loss of the previous round, so that devices which take part more often gain no
advantage. In the first round, where it is not known, s_k does not change. With all devices in every round this is the
multiplicative rule exactly; with fewer it is an estimate of it. mixture_step = 0 is FedProx, bit for bit.

Partial work is kept. The loss costs one pass over the samples, which is not part of the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fedprox.config.fields import NotNegative
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree, scale
from fedprox.methods.device_view import DeviceView
from fedprox.methods.method import Method, Reply

__all__ = ["Agnostic"]

_MOST = 30.0  # of |log s_k|: beyond it a device has all the weight, or none


@dataclass(frozen=True)
class Agnostic(Method):
    """Agnostic federated learning: the mixture moves towards the devices with the highest loss; partial work is kept.

    >>> averaged = {"model": np.float32(6), "share": np.float64(2), "loss": np.float64(0.5)}
    >>> Agnostic().merge(Agnostic().start(None), None, averaged, ())[0]
    np.float32(3.0)
    """

    name: str = field(default="agnostic", init=False)
    proximal: bool = field(default=True, init=False)
    sends_numbers: bool = field(default=True, init=False)
    mixture_step: NotNegative = 0.1

    def __post_init__(self) -> None:
        if not self.mixture_step >= 0:
            raise ConfigError(f"`method.mixture_step` must be a number >= 0; got {self.mixture_step!r}")

    def start(self, params: Tree) -> Tree:
        """Return the level of the losses, and whether it is known."""
        return {"level": np.zeros(()), "known": np.zeros(())} if self.mixture_step else ()

    def start_device(self, params: Tree) -> Tree:
        """Return log s_k."""
        return {"score": np.zeros(())} if self.mixture_step else None

    def send(self, server: Tree, mean_gradient: Tree) -> Tree:
        """Send the level down."""
        return server

    def work(self, device: DeviceView) -> Reply:
        """Send s_k w_k, s_k and F_k(w^t), and renew s_k."""
        found = device.solve().params
        if self.mixture_step == 0:
            return Reply(found)
        loss, score = device.loss(), float(device.state["score"])
        share = math.exp(score)
        if device.sent["known"]:
            moved = score + self.mixture_step * (loss - float(device.sent["level"]))
            score = moved if abs(moved) <= _MOST else math.copysign(_MOST, moved)
        averaged = {"model": scale(found, share), "share": np.float64(share), "loss": np.float64(loss)}
        return Reply(averaged, state={"score": np.array(score)})

    def unmoved(self, params: Tree) -> Tree:
        """Return w^t with the share that devices start with."""
        unmoved = {"model": params, "share": np.float64(1), "loss": np.float64(0)}
        return unmoved if self.mixture_step else params

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Average with the mixture's weights, and remember the level."""
        if self.mixture_step == 0:
            return averaged, server
        model = scale(averaged["model"], float(1 / averaged["share"]))
        return model, {"level": np.asarray(averaged["loss"]), "known": np.ones(())}
