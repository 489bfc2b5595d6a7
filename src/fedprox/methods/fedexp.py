"""FedExP (Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", 2023).

FedAvg with a server step that adapts to how much the updates D_k = w_k - w^t agree, with the round's weights:

    step = max(1, sum_k weight_k ||D_k||^2 / (2 (||sum_k weight_k D_k||^2 + epsilon)))
    w^{t+1} = w^t + step * sum_k weight_k D_k

The factor 2 is for local steps that only approximate a projection. A number for `extrapolation` holds the step; 1 is
FedAvg. As in FedAvg, stragglers are dropped. Devices and server remember nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedprox.config.fields import NotNegative
from fedprox.core.trees import Tree, squared_distance
from fedprox.methods.extrapolation import Extrapolation, extrapolate, reply_with_norm
from fedprox.methods.method import Method, Reply, Solution

__all__ = ["FedExP"]


@dataclass(frozen=True)
class FedExP(Method):
    """FedExP: FedAvg with an extrapolated server step; stragglers are dropped.

    >>> averaged = {"model": np.float32(1), "norm2": np.float64(6)}  # the mean moved by 1, devices by sqrt(6)
    >>> FedExP(epsilon=0.0).merge((), np.float32(0), averaged, ())[0]
    np.float32(3.0)
    """

    name: str = field(default="fedexp", init=False)
    keeps_partial_work: bool = field(default=False, init=False)
    extrapolation: Extrapolation = "auto"
    epsilon: NotNegative = 1e-3

    def reply(self, solution: Solution) -> Reply:
        """Send w_k and ||w_k - w^t||^2."""
        return reply_with_norm(solution)

    def unmoved(self, params: Tree) -> Tree:
        """Return w^t and 0."""
        return {"model": params, "norm2": np.float64(0)}

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Take the extrapolated step."""
        mean = averaged["model"]
        return extrapolate(params, mean, self._step(squared_distance(mean, params), float(averaged["norm2"]))), server

    def _step(self, moved2: float, norm2: float) -> float:
        if self.extrapolation != "auto":
            return self.extrapolation
        return max(1.0, norm2 / (2 * (moved2 + self.epsilon))) if moved2 > 0 else 1.0
