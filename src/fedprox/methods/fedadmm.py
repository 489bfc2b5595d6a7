"""FedADMM-InSa (Song, Wang and Zuazua, "FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning", 2024).

ADMM on the consensus problem, minimise sum_k p_k F_k(u_k) subject to u_k = z: each device has its own dual lambda_k and
penalty beta_k, and z is the model w^t. A chosen device minimises

    F_k(u) - <lambda_k, u> + (beta_k / 2) ||u - w^t||^2        from w^t

until it is sigma_k-inexact, ||grad h_k(u)|| <= sigma_k ||grad h_k(w^t)||, or its budget is spent, with

    sigma_k = 0.999 sqrt(2) / (sqrt(2) + sqrt(beta_k / convexity))

then sets lambda_k <- lambda_k - beta_k (u_k - w^t), and adjusts its penalty for its next round: with r = beta_k ||u_k -
its last u_k|| and s = ||u_k - w^t|| it is multiplied by `penalty_factor` where `balance` r < s, and divided by it where
`balance` s < r. The server minimises over z, with the last u_k, lambda_k and beta_k of every device seen so far:

    w^{t+1} = w^t + m (A / B - w^t),    A = sum_k p_k (beta_k u_k - lambda_k),    B = sum_k p_k beta_k

A device that has not taken part counts as one at w^t, so the step m is the mass of those that have: |S| / N after the
first round, with equal sizes. mu is the first penalty. With a fixed penalty (`penalty_factor` 1), solved with the
entire budget and with all devices in every round, this is FedDyn with alpha = mu.

Partial work is kept; the stopping test costs one gradient an epoch, which is not part of the budget. A failed device
keeps what it remembers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import jax
import numpy as np
from pydantic import Field

from fedprox.config.fields import LARGEST, Positive
from fedprox.core.trees import Tree, difference, scale, squared_distance, total
from fedprox.methods.device_view import DeviceView
from fedprox.methods.method import Method, Reply
from fedprox.methods.positive_mu import PositiveMu, check_positive, positive_mu

__all__ = ["FedAdmm"]

Factor = Annotated[float, Field(ge=1, le=LARGEST, allow_inf_nan=False, description="a number >= 1")]


@dataclass(frozen=True)
class FedAdmm(Method):
    """FedADMM-InSa: duals, penalties and a stopping test per device; partial work is kept.

    >>> round(FedAdmm(convexity=0.5).accuracy(1.0), 4)  # 0.999 / 2
    0.4995
    """

    name: str = field(default="fedadmm", init=False)
    proximal: bool = field(default=True, init=False)
    adds_up_memory: bool = field(default=True, init=False)
    mu: PositiveMu = 1.0
    convexity: Positive = 0.01
    balance: Factor = 5.0
    penalty_factor: Factor = 2.0

    def __post_init__(self) -> None:
        check_positive(self.mu)

    def subproblem_mu(self, mu: float) -> float:
        """Return the first penalty, which must be positive."""
        return positive_mu(mu, self.mu)

    def accuracy(self, penalty: float) -> float:
        """Return sigma_k."""
        return 0.999 * math.sqrt(2) / (math.sqrt(2) + math.sqrt(penalty / self.convexity))

    def start(self, params: Tree) -> Tree:
        """Return A, B and the mass of the devices that have taken part."""
        return {"total": jax.tree.map(np.zeros_like, params), "penalty": np.zeros(()), "mass": np.zeros(())}

    def start_device(self, params: Tree) -> Tree:
        """Return u_k, lambda_k, and the penalties of the last round (0: none) and of the next (0: the first)."""
        zeros = jax.tree.map(np.zeros_like, params)
        return {"model": params, "dual": zeros, "used": np.zeros(()), "penalty": np.zeros(())}

    def work(self, device: DeviceView) -> Reply:
        """Minimise the augmented Lagrangian, move the dual and adjust the penalty."""
        last, dual = device.state["model"], device.state["dual"]
        used, penalty = float(device.state["used"]), float(device.state["penalty"]) or device.mu
        gamma = self.accuracy(penalty)
        found = device.solve(mu=penalty, linear=scale(dual, -1.0), gamma=gamma).params
        moved = difference(found, device.received)
        new_dual = difference(dual, scale(moved, penalty))
        new = difference(scale(found, penalty), new_dual)
        summed = {
            "total": difference(new, difference(scale(last, used), dual)),
            "penalty": np.float64(penalty - used),
            "mass": np.float64(used == 0),
        }
        adjusted = self._adjusted(penalty, found, last, device.received)
        state = {"model": found, "dual": new_dual, "used": np.array(penalty), "penalty": np.array(adjusted)}
        return Reply(found, summed, state)

    def _adjusted(self, penalty: float, found: Tree, last: Tree, received: Tree) -> float:
        r = penalty * math.sqrt(squared_distance(found, last))
        s = math.sqrt(squared_distance(found, received))
        if self.balance * r < s:
            return penalty * self.penalty_factor
        return penalty / self.penalty_factor if self.balance * s < r else penalty

    def uploaded(self, reply: Reply) -> Tree:
        """Return what the device adds to A, B and the mass."""
        return reply.summed

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Minimise over z."""
        server = total(server, summed)
        mean = scale(server["total"], float(1 / server["penalty"]))
        return total(params, scale(difference(mean, params), min(float(server["mass"]), 1.0))), server
