"""q-FedAvg (Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", 2020) for q-FFL.

The objective raises each device's loss to a power, so that devices with a high loss count for more:

    minimise sum_k p_k F_k(w)^(q + 1) / (q + 1)

Each chosen device takes E epochs of SGD on F_k from w^t, as in FedAvg, and evaluates F_k(w^t). With D_k = w^t - w_k and
L = 1 / eta, the inverse of the learning rate, as the estimate of F_k's smoothness,

    h_k = F_k(w^t)^q + q F_k(w^t)^(q - 1) L ||D_k||^2
    w^{t+1} = w^t - sum_k weight_k F_k(w^t)^q D_k / sum_k weight_k h_k

L h_k bounds how fast the gradient of F_k^(q + 1) / (q + 1) changes. The source has no weights in its sums; here they
are the round's. q = 0 is FedAvg, bit for bit.

As in FedAvg, stragglers are dropped. The loss costs one pass over the samples, which is not part of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from fedprox.config.fields import NotNegative
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree, difference, scale, squared_norm
from fedprox.methods.device_view import DeviceView
from fedprox.methods.method import Method, Reply

__all__ = ["QFedAvg"]

_SMALLEST = 1e-10  # of a loss, which is divided by where q < 1


@dataclass(frozen=True)
class QFedAvg(Method):
    """q-FedAvg: devices with a high loss count for more; stragglers are dropped.

    >>> QFedAvg(q=1.0).merge((), np.float32(5), {"move": np.float32(6), "bound": np.float64(3)}, ())[0]
    np.float32(3.0)
    """

    name: str = field(default="qffl", init=False)
    keeps_partial_work: bool = field(default=False, init=False)
    sends_numbers: bool = field(default=True, init=False)
    q: NotNegative = 0.0

    def __post_init__(self) -> None:
        if not self.q >= 0:
            raise ConfigError(f"`method.q` must be a number >= 0; got {self.q!r}")

    def work(self, device: DeviceView) -> Reply:
        """Send F_k^q (w^t - w_k), and h_k."""
        found = device.solve().params
        if self.q == 0:
            return Reply(found)
        move = difference(device.received, found)
        loss = np.float64(max(device.loss(), _SMALLEST))  # a power of a Python number raises where it is infinite
        bound = loss**self.q + self.q * loss ** (self.q - 1) * squared_norm(move) / device.learning_rate
        return Reply({"move": scale(move, loss**self.q), "bound": np.float64(bound)})

    def unmoved(self, params: Tree) -> Tree:
        """Return a zero update, with the bound of a loss of 1."""
        return params if self.q == 0 else {"move": jax.tree.map(np.zeros_like, params), "bound": np.float64(1)}

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Take the step that the bounds allow."""
        if self.q == 0:
            return averaged, server
        return difference(params, scale(averaged["move"], float(1 / averaged["bound"]))), server
