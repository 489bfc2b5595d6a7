"""SCAFFOLD, option II (Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020).

Control variates estimate how a device's gradient differs from the mean one: c_k on device k, c = sum_k p_k c_k on the
server, all zero at the start. A chosen device takes SGD steps w <- w - eta (g_k(w) - c_k + c), which is the subproblem

    F_k(w) + <c - c_k, w>

and then updates its variate with the mean gradient along its way from w^t to w_k,

    c_k^+ = c_k - c + (w^t - w_k) / (a eta)

where a is the number of steps actually taken (`gradient_count`, which also covers momentum). The server averages the
w_k (a server step of 1) and moves c by sum over S of p_k (c_k^+ - c_k), so that c stays the mean of all c_k.

A variate of few steps is a gradient near w^t, one of many steps a gradient near the device's own optimum. A device
whose budget changes from round to round is pushed along the difference in every one of its steps, and with long local
work the run may diverge. With `damping` d < 1 a variate takes d times its change; 1 is the source's.

Partial work is kept: a straggler's variate divides by the steps it did. A device that did none, or failed, keeps its
old variate. Solvers outside the SGD family are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import jax
import numpy as np
from pydantic import Field

from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree, difference, scale, total
from fedprox.methods.gradient_count import check_counts_gradients, gradient_count
from fedprox.methods.hook_marks import elementwise
from fedprox.methods.method import Method, Reply, Solution
from fedprox.solvers import Solver

__all__ = ["Scaffold"]

Damping = Annotated[float, Field(ge=1e-9, le=1, allow_inf_nan=False, description="a number in (0, 1]")]


@dataclass(frozen=True)
class Scaffold(Method):
    """SCAFFOLD: control variates on server and devices; partial work is kept.

    >>> Scaffold().start_device({"weight": np.ones(2)})
    {'weight': array([0., 0.])}
    """

    name: str = field(default="scaffold", init=False)
    adds_up_memory: bool = field(default=True, init=False)
    damping: Damping = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise ConfigError(f"`method.damping` must be a number in (0, 1]; got {self.damping!r}")

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
        if self.damping != 1:
            change = scale(change, self.damping)
        return Reply(solution.params, change, total(solution.state, change))

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Average the w_k and move c."""
        return averaged, total(server, summed)
