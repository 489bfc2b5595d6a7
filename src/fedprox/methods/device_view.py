"""The device as a method sees it: its state when its work starts, the subproblems it can solve, and its reply.

A method poses subproblems, h_k(w) = F_k(w) + <c_k, w> + (mu_k / 2) ||w - a_k||^2 from a starting point; the solver of a
device works on them. Most methods pose one (`Method.work`). One with a second model on the device poses another:

    def work(self, device):
        shared = device.solve()
        own = device.solve(start=device.state, anchor=device.received, mu=self.strength)
        return Reply(shared.params, state=own.params)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedprox.core.errors import RunError
from fedprox.core.trees import Tree
from fedprox.solvers import Solver

__all__ = ["DeviceView", "Mu", "Posed", "Reply", "Solution"]

Mu = float | Mapping[str, float]
"""A proximal coefficient: one number, or one for each group of parameters, as a mapping from patterns over names."""


class Posed(NamedTuple):
    """A subproblem as a method poses it; trees of NumPy arrays."""

    anchor: Tree  # a_k; None: w^t
    mu: Mu
    linear: Tree  # c_k; None: there is none
    start: Tree  # None: w^t
    gamma: float | None = None  # at which the solver may stop; None: that of the config


class Solution(NamedTuple):
    """What a device has after it has worked on its subproblem; trees of NumPy arrays."""

    anchor: Tree  # a_k, which is w^t unless the method has another one
    params: Tree  # w_k
    steps: int  # actually done
    learning_rate: float
    mu: Mu
    solver: Solver
    sent: Tree  # what the server sent besides the model
    state: Tree  # what the device remembers from the last time it took part
    received: Tree = None  # w^t


class Reply(NamedTuple):
    """What a device sends back: `averaged` with the round's weights, `summed` with the device's mass p_k = n_k / n."""

    averaged: Tree
    summed: Tree = ()
    state: Tree = None  # what the device remembers; None: nothing


def _no_gradients(params: Tree) -> Tree:
    raise RunError("a method that asks for gradients at a device's solution is for simulations; got real devices")


class DeviceView(NamedTuple):
    """A device at the start of its work; trees of NumPy arrays."""

    received: Tree  # w^t
    sent: Tree  # what the server sent besides the model
    state: Tree  # what the device remembers
    gradient: Tree  # grad F_k(w^t), for methods that need gradients
    mu: float  # of the round
    budget: int  # in mini-batch steps
    learning_rate: float
    solver: Solver
    pose: Callable[[Posed, int], tuple[Tree, int]]  # has the solver work on a subproblem, with a budget
    round: int = 0
    gradient_at: Callable[[Tree], Tree] = _no_gradients  # grad F_k at a model; not part of the budget
    loss: Callable[[], float] = lambda: math.nan  # F_k(w^t), known once a subproblem is solved; not part of the budget

    def solve(
        self,
        *,
        anchor: Tree = None,
        mu: Mu | None = None,
        linear: Tree = None,
        start: Tree = None,
        budget: int | None = None,
        gamma: float | None = None,
    ) -> Solution:
        """Let the device work on a subproblem; by default F_k(w) + (mu / 2) ||w - w^t||^2 from w^t on.

        The mini-batches are those of the device's round, from the first on, in every solve. With `gamma` the solver
        stops when it is gamma-inexact, in place of `solver.gamma`.
        """
        posed = Posed(anchor, self.mu if mu is None else mu, linear, start, gamma)
        params, steps = self.pose(posed, self.budget if budget is None else budget)
        return Solution(
            anchor=self.received if anchor is None else anchor,
            params=params,
            steps=steps,
            learning_rate=self.learning_rate,
            mu=posed.mu,
            solver=self.solver,
            sent=self.sent,
            state=self.state,
            received=self.received,
        )
