"""FedDyn (Acar et al., "Federated Learning Based on Dynamic Regularization", 2021), with the masses p_k throughout.

Each device remembers a dual lambda_k, its gradient at its last solution; the server keeps h = sum_k p_k lambda_k. All
are zero at the start. A chosen device minimises

    F_k(w) - <lambda_k, w> + (alpha / 2) ||w - w^t||^2

as far as its budget allows and sets lambda_k <- lambda_k - alpha (w_k - w^t), which is grad F_k(w_k) where the solution
is exact. The server then sets:

    h <- h - alpha sum over S of p_k (w_k - w^t),        w^{t+1} = sum_k weight_k w_k - h / alpha

At an optimum w* with lambda_k = grad F_k(w*), h = 0 and no device moves: unlike FedProx, its fixed point is exact.

Partial work is kept: the dual moves by as much as the device moved. A failed device keeps its old dual. alpha is the
method's own coefficient and takes mu's place in the subproblem.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from fedprox.config.fields import Positive
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree, difference, scale
from fedprox.methods.hook_marks import elementwise
from fedprox.methods.method import Method, Reply, Solution

__all__ = ["FedDyn"]


@dataclass(frozen=True)
class FedDyn(Method):
    """FedDyn: a proximal term and a running dual; partial work is kept.

    >>> FedDyn(alpha=0.5).subproblem_mu(0.0)
    0.5
    """

    name: str = field(default="feddyn", init=False)
    adds_up_memory: bool = field(default=True, init=False)
    alpha: Positive = 0.1

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"`method.alpha` must be a number > 0; got {self.alpha!r}")

    @property
    def mu_key(self) -> str:
        """Return the key that takes mu's place."""
        return "alpha"

    def subproblem_mu(self, mu: float) -> float:
        """Return alpha, which takes mu's place."""
        return self.alpha

    def start(self, params: Tree) -> Tree:
        """Return h."""
        return jax.tree.map(np.zeros_like, params)

    def start_device(self, params: Tree) -> Tree:
        """Return lambda_k."""
        return jax.tree.map(np.zeros_like, params)

    @elementwise
    def linear(self, sent: Tree, state: Tree, gradient: Tree) -> Tree:
        """Return -lambda_k."""
        return scale(state, -1.0)

    @elementwise
    def reply(self, solution: Solution) -> Reply:
        """Send w_k and alpha (w_k - w^t), and move the dual."""
        moved = scale(difference(solution.params, solution.anchor), self.alpha)
        return Reply(solution.params, moved, difference(solution.state, moved))

    def uploaded(self, reply: Reply) -> Tree:
        """Return w_k, from which the rest follows."""
        return reply.averaged  # alpha (w_k - w^t) follows from it

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Move h, and the model by it."""
        h = difference(server, summed)
        return difference(averaged, scale(h, 1 / self.alpha)), h
