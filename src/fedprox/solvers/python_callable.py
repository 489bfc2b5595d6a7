"""A local solver that is any Python function.

    solve(params, x, y, subproblem, budget, key) -> (params, steps)

It receives the starting point (w^t, unless the method says otherwise) and the device's samples as NumPy arrays, the
subproblem, its budget in mini-batch steps, and an integer below 2^32 that depends on (seed, round, device) alone, as
the seed of its own draws (`numpy.random.default_rng(key)`, `torch.manual_seed(key)`, `jax.random.key(key)`). It counts
its own steps. The result is checked: same names and shapes, at most the budget. Numbers that are not finite are kept,
as those of any other solver that diverges, and show in the records. Before the first round it is tried once, with a
budget of one step on one device, and that result is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunError
from fedprox.core.own_code import own_code
from fedprox.core.own_results import check_steps, fitted
from fedprox.core.randomness import Purpose, words
from fedprox.core.trees import Tree, to_numpy
from fedprox.solvers.oracle import Oracle
from fedprox.solvers.solver import LocalProblem

__all__ = ["LocalView", "OpaqueSolver", "opaque", "solver_key"]


@dataclass(frozen=True)
class LocalView:
    """What an opaque solver may know about its subproblem; trees of NumPy arrays.

    h_k(w) = F_k(w) + <c_k, w> + (mu / 2) ||w - a_k||^2
    """

    anchor: Tree  # a_k; w^t unless the method says otherwise
    mu: Any  # a number; where it differs by group of parameters, a tree like the anchor with a number for each leaf
    linear: Tree  # c_k, or None
    gamma: float  # the inexactness to stop at; 0: none
    learning_rate: float
    steps_per_epoch: int  # what one pass over the samples costs
    local: LocalProblem

    def minibatches(self) -> Iterator[NDArray[np.int32]]:
        """Return the rows of x and y in each mini-batch of the budget, in the order every solver sees."""
        return self.local.batches()

    def value_and_gradient(self, params: Tree) -> tuple[float, Tree]:
        """Return h_k and its gradient over all samples; by convention this counts as `steps_per_epoch` steps."""
        oracle = Oracle(self.local)
        point = oracle.point(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(np.float64))
        return point.value, to_numpy(oracle.tree(point.gradient))


Function = Callable[[Tree, NDArray[Any], NDArray[Any], LocalView, int, int], tuple[Tree, int]]


def opaque(function: Function, name: str = "") -> OpaqueSolver:
    """Return a Python function as a local solver.

    >>> def halve(params, x, y, subproblem, budget, key):
    ...     return {name: value / 2 for name, value in params.items()}, 1
    >>> opaque(halve).name
    'halve'
    """
    return OpaqueSolver(function, name or getattr(function, "__name__", "opaque"))


@dataclass(frozen=True)
class OpaqueSolver:
    """A Python function that solves; see the module."""

    function: Function
    name: str
    is_sgd: bool = False
    updates_statistics: ClassVar[bool] = True  # what the function returns is taken as it is

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Call the function and check what it returns."""
        anchor, linear = to_numpy(local.problem.anchor), to_numpy(local.problem.linear)
        view = LocalView(
            anchor=anchor,
            mu=jax.tree.map(float, local.problem.mu),
            linear=linear,
            gamma=local.gamma,
            learning_rate=local.learning_rate,
            steps_per_epoch=local.steps_per_epoch,
            local=local,
        )
        start = jax.tree.map(np.array, local.start)  # its own copy, which it may change
        x, y = local.samples.of(local.device)
        where = f"solver {self.name} on device {local.device} in round {local.round}"
        with own_code(where):
            answer = self.function(start, x, y, view, local.budget, solver_key(local))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise RunError(f"{where} must return (params, steps); got {type(answer).__name__}")
        params, steps = answer
        return fitted(params, anchor, where), check_steps(steps, local.budget, where)


def solver_key(local: LocalProblem) -> int:
    """Return the seed, below 2^32, of a solver's own draws in this round on this device."""
    return int(words(1, local.seed, Purpose.SOLVER, local.round, local.device)[0] >> np.uint64(32))
