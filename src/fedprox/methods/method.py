"""What makes one federated method different from another; the loop asks a method nothing else.

A round of any method: the server sends down the model w^t and what the method adds to it; each chosen device solves

    h_k(w; w^t) = F_k(w) + <c_k, w> + (mu / 2) ||w - w^t||^2

as far as its budget allows and replies; the server merges the replies. A method says what the linear term c_k is, who
is kept, what a device replies and remembers, and how the server merges. The defaults below average the solutions:

    w^{t+1} = sum_k weight_k w_k
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.core.trees import Tree
from fedprox.participation.stragglers import Workload
from fedprox.solvers import Solver

__all__ = ["Method", "Reply", "Solution"]


class Solution(NamedTuple):
    """What a device knows when it has worked on its subproblem; trees of NumPy arrays."""

    anchor: Tree  # w^t
    params: Tree  # w_k
    steps: int  # really done
    learning_rate: float
    mu: float
    solver: Solver
    sent: Tree  # what the server sent beside the model
    state: Tree  # what the device remembers from the last time it took part


class Reply(NamedTuple):
    """What a device sends back: `averaged` with the round's weights, `summed` with the device's mass p_k = n_k / n."""

    averaged: Tree
    summed: Tree = ()
    state: Tree = None  # what the device remembers; None: nothing


@dataclass(frozen=True)
class Method:
    """A federated method. This one averages; others override what they do differently.

    Attributes:
      name: what it is called in configs and records.
      proximal: whether `method.mu` acts in the subproblem.
      keeps_partial_work: whether stragglers' partial solutions are merged, or the stragglers dropped.
      needs_gradients: whether devices' gradients at w^t are averaged before the chosen ones start (FedDANE).
      second_draw: whether those gradients come from a second draw of devices, not from the chosen ones.
    """

    name: str
    proximal: bool = False
    keeps_partial_work: bool = True
    needs_gradients: bool = field(default=False, kw_only=True)
    second_draw: bool = field(default=False, kw_only=True)

    def check(self, solver: Solver) -> None:
        """Refuse a solver that the method cannot use."""

    def kept(self, work: Workload) -> NDArray[np.bool_]:
        """Return which listed devices take part in the merge."""
        return np.ones_like(work.straggler) if self.keeps_partial_work else ~work.straggler

    def subproblem_mu(self, mu: float) -> float:
        """Return the proximal coefficient of the subproblem, given `method.mu`."""
        return mu if self.proximal else 0.0

    def start(self, params: Tree) -> Tree:
        """Return the server's state before the first round."""
        return ()

    def start_device(self, params: Tree) -> Tree:
        """Return what a device remembers before it first takes part; None: nothing."""
        return None

    def send(self, server: Tree, mean_gradient: Tree) -> Tree:
        """Return what goes down beside the model; `mean_gradient` is None where there is none."""
        return ()

    def linear(self, sent: Tree, state: Tree, gradient: Tree) -> Tree:
        """Return c_k, or None for no linear term; `gradient` is grad F_k(w^t) if the method needs gradients."""
        return None

    def reply(self, solution: Solution) -> Reply:
        """Return what a device sends back."""
        return Reply(solution.params)

    def uploaded(self, reply: Reply) -> Tree:
        """Return what of a reply crosses the network; the server works out the rest."""
        return reply.averaged, reply.summed

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Any) -> tuple[Tree, Tree]:
        """Return the new model and the server's new state from the merged replies."""
        return averaged, server
