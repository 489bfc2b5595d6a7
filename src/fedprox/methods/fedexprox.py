"""FedExProx (Li, Acharya and Richtarik, "The Power of Extrapolation in Federated Learning", 2024).

FedProx with an extrapolated server step. Each device minimises F_k(w) + (mu / 2) ||w - w^t||^2, an approximate proximal
point w_k, and with D_k = w_k - w^t and the round's weights

    step = sum_k weight_k ||D_k||^2 / ||sum_k weight_k D_k||^2        (gradient diversity, GraDS)
    w^{t+1} = w^t + step * sum_k weight_k D_k

mu D_k is minus the gradient of F_k's Moreau envelope where the solution is exact; the ratio is at least 1 for any
weights that sum to 1. Unlike FedExP's rule there is no factor 2. A number for `extrapolation` holds the step; 1 is
FedProx. Partial work is kept. Devices and server remember nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedprox.core.trees import Tree, squared_distance
from fedprox.methods.extrapolation import Extrapolation, extrapolate, reply_with_norm
from fedprox.methods.method import Method, Reply, Solution

__all__ = ["FedExProx"]


@dataclass(frozen=True)
class FedExProx(Method):
    """FedExProx: FedProx with an extrapolated server step; partial work is kept.

    >>> averaged = {"model": np.float32(1), "norm2": np.float64(3)}
    >>> FedExProx().merge((), np.float32(0), averaged, ())[0]
    np.float32(3.0)
    """

    name: str = field(default="fedexprox", init=False)
    proximal: bool = field(default=True, init=False)
    extrapolation: Extrapolation = "auto"

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
        return max(1.0, norm2 / moved2) if moved2 > 0 else 1.0
