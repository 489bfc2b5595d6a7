"""SCAFFOLD, option II (Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020).

Control variates estimate how a device's gradient differs from the mean one: c_k on device k, c = sum_k p_k c_k on the
server, all zero at the start. A chosen device takes SGD steps w <- w - eta (g_k(w) - c_k + c), which is the subproblem

    F_k(w) + <c - c_k, w>

and then renews its variate with the mean gradient that it has seen on its way from w^t to w_k,

    c_k^+ = c_k - c + (w^t - w_k) / (a eta)

where a is the number of steps really done (`gradient_count`, which also knows momentum). The server averages the w_k
(a server step of 1) and moves c by sum over S of p_k (c_k^+ - c_k), so that c stays the mean of all c_k.

Partial work is kept: a straggler's variate divides by the steps it did. A device that did none, or failed, keeps its
old variate. Solvers outside the SGD family are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from fedprox.core.trees import Tree, difference, scale, total
from fedprox.methods.elementwise_hooks import elementwise
from fedprox.methods.gradient_count import check_counts_gradients, gradient_count
from fedprox.methods.method import Method, Reply, Solution
from fedprox.solvers import Solver

__all__ = ["Scaffold"]


@dataclass(frozen=True)
class Scaffold(Method):
    """SCAFFOLD: control variates on server and devices; partial work is kept.

    >>> Scaffold().start_device({"weight": np.ones(2)})
    {'weight': array([0., 0.])}
    """

    name: str = field(default="scaffold", init=False)

    def check(self, solver: Solver) -> None:
        """Refuse solvers outside the SGD family."""
        check_counts_gradients(self.name, solver)

    def start(self, params: Tree) -> Tree:
        """Return c."""
        return jax.tree.map(np.zeros_like, params)

    def start_device(self, params: Tree) -> Tree:
        """Return c_k."""
        return jax.tree.map(np.zeros_like, params)

    def send(self, server: Tree, mean_gradient: Tree) -> Tree:
        """Send c down."""
        return server

    @elementwise
    def linear(self, sent: Tree, state: Tree, gradient: Tree) -> Tree:
        """Return c - c_k."""
        return difference(sent, state)

    @elementwise
    def reply(self, solution: Solution) -> Reply:
        """Send w_k and the change of c_k."""
        count = gradient_count(solution.solver, solution.steps, solution.learning_rate, solution.mu)
        if count == 0:
            return Reply(solution.params, jax.tree.map(np.zeros_like, solution.state), solution.state)
        moved = difference(solution.anchor, solution.params)
        change = difference(scale(moved, 1 / (count * solution.learning_rate)), solution.sent)
        return Reply(solution.params, change, total(solution.state, change))

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Average the w_k and move c."""
        return averaged, total(server, summed)
