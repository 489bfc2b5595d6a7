"""FedAdam (Reddi et al., "Adaptive Federated Optimization", 2021): the server takes Adam steps.

    D = sum_k weight_k (w_k - w^t)
    m <- beta1 m + (1 - beta1) D
    v <- beta2 v + (1 - beta2) D^2
    w^{t+1} = w^t + server_learning_rate m / (sqrt(v) + tau)

entry by entry, with m = 0 and v = tau^2 at the start and no correction for it, as in the source.

As in FedAvg, stragglers are dropped with their partial work. In a round with no device left, model, m and v do not
change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from fedprox.config.fields import BelowOne, Positive
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree, difference
from fedprox.methods.method import Method

__all__ = ["FedAdam"]


@dataclass(frozen=True)
class FedAdam(Method):
    """FedAdam: Adam on the server; stragglers are dropped.

    >>> method = FedAdam(server_learning_rate=1.0, beta1=0.0, beta2=0.0, tau=1.0)
    >>> params, state = method.merge(method.start(np.float32(0)), np.float32(0), np.float32(3), ())
    >>> params  # 3 / (|3| + 1)
    np.float32(0.75)
    """

    name: str = field(default="fedadam", init=False)
    keeps_partial_work: bool = field(default=False, init=False)
    sends_model_only: bool = field(default=True, init=False)
    server_learning_rate: Positive = 0.03
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 1e-3

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ConfigError(f"`method.tau` must be a number > 0; got {self.tau!r}")

    def start(self, params: Tree) -> Tree:
        """Return m and v."""
        return {
            "m": jax.tree.map(np.zeros_like, params),
            "v": jax.tree.map(lambda leaf: np.full_like(leaf, self.tau**2), params),
        }

    def second_moment(self, v: Any, square: Any) -> Any:
        """Return the new v of one leaf, given D^2."""
        return self.beta2 * v + (1 - self.beta2) * square

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Take the server's step."""
        move = difference(averaged, params)
        m = jax.tree.map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, server["m"], move)
        v = jax.tree.map(lambda v, d: self.second_moment(v, d * d), server["v"], move)

        def step(w: Any, m: Any, v: Any) -> Any:
            return w + self.server_learning_rate * m / (np.sqrt(v) + self.tau)

        return jax.tree.map(step, params, m, v), {"m": m, "v": v}
