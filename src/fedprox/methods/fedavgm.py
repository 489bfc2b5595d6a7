"""FedAvgM (Hsu et al., "Measuring the Effects of Non-Identical Data Distribution", 2019): FedAvg with server momentum.

    D = sum_k weight_k (w_k - w^t),        v <- momentum v + D,        w^{t+1} = w^t + server_learning_rate v

with v = 0 at the start. Momentum 0 and server rate 1 is FedAvg.

As in FedAvg, stragglers are dropped with their partial work. In a round with no device left, model and v do not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from fedprox.config.fields import BelowOne, Positive
from fedprox.core.trees import Tree, difference, scale, total
from fedprox.methods.method import Method

__all__ = ["FedAvgM"]


@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvgM: FedAvg with momentum on the server; stragglers are dropped.

    >>> method = FedAvgM(momentum=0.5)
    >>> method.merge(np.float32(4), np.float32(1), np.float32(2), ())  # v = 0.5 * 4 + (2 - 1)
    (np.float32(4.0), np.float32(3.0))
    """

    name: str = field(default="fedavgm", init=False)
    keeps_partial_work: bool = field(default=False, init=False)
    sends_model_only: bool = field(default=True, init=False)
    server_learning_rate: Positive = 1.0
    momentum: BelowOne = 0.9

    def start(self, params: Tree) -> Tree:
        """Return v."""
        return jax.tree.map(np.zeros_like, params)

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Take the server's step."""
        velocity = total(scale(server, self.momentum), difference(averaged, params))
        return total(params, scale(velocity, self.server_learning_rate)), velocity
