"""FedNova (Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", 2020).

Devices that take more steps move further, and a plain average leans towards their objectives. FedNova averages the
devices' updates per gradient, and makes one update of the mean length:

    w^{t+1} = w^t - (sum_k weight_k a_k) sum_k weight_k (w^t - w_k) / a_k

a_k is the number of steps tau_k actually taken for plain SGD, (1 - (1 - eta mu)^tau_k) / (eta mu) with a proximal term,
and known for momentum too (`gradient_count`). The subproblem is FedProx's, F_k(w) + (mu / 2) ||w - w^t||^2.

Partial work is kept, which is the purpose of the method: a straggler's short update counts as much as a long one. A
device that took no step does not move the model. Solvers outside the SGD family are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from fedprox.core.trees import Tree, difference, scale
from fedprox.methods.gradient_count import check_counts_gradients, gradient_count
from fedprox.methods.hook_marks import elementwise
from fedprox.methods.method import Method, Reply, Solution
from fedprox.solvers import Solver

__all__ = ["FedNova"]


@dataclass(frozen=True)
class FedNova(Method):
    """FedNova: normalised averaging; partial work is kept.

    >>> FedNova().merge((), np.float32(5), {"move": np.float32(0.5), "count": np.float64(4)}, ())[0]
    np.float32(3.0)
    """

    name: str = field(default="fednova", init=False)
    proximal: bool = field(default=True, init=False)
    sends_numbers: bool = field(default=True, init=False)

    def check(self, solver: Solver) -> None:
        """Refuse solvers outside the SGD family."""
        check_counts_gradients(self.name, solver)

    @elementwise
    def reply(self, solution: Solution) -> Reply:
        """Send the update per gradient, and the count."""
        count = gradient_count(solution.solver, solution.steps, solution.learning_rate, solution.mu)
        moved = difference(solution.anchor, solution.params)  # zero where no step was done
        return Reply({"move": scale(moved, 1 / count if count else 0.0), "count": np.float64(count)})

    def unmoved(self, params: Tree) -> Tree:
        """Return a zero update and no gradient."""
        return {"move": jax.tree.map(np.zeros_like, params), "count": np.float64(0)}

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Make one update of the mean length."""
        return difference(params, scale(averaged["move"], averaged["count"])), server
