"""What a local solver is, and the one loop that runs it.

A solver is a pair of pure functions: the state it starts with, and one step from a gradient of the subproblem. The
loop below feeds it the gradients of mini-batches (or of the whole local data set) as far as the budget goes. Number
of steps, sizes, mu and learning rate are arguments of one compiled program, never part of its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.models import Model, mean_gradient
from fedprox.runtime import SMALL, compiled, one_kernel
from fedprox.subproblem import Subproblem, add_terms, device_gradient
from fedprox.trees import Tree

__all__ = ["Solver", "fullbatch_program", "minibatch_program"]


@dataclass(frozen=True)
class Solver:
    """A first-order local solver.

    Attributes:
      name: what it is called in configs and records.
      init: `init(params) -> state` at the start of every local solve.
      step: `step(params, gradient, state, learning_rate) -> (params, state)`.
    """

    name: str
    init: Callable[[Tree], Tree]
    step: Callable[[Tree, Tree, Tree, jax.Array], tuple[Tree, Tree]]


@lru_cache(maxsize=32)
def minibatch_program(model: Model, solver: Solver, batch_size: int) -> Callable[..., Any]:
    """Return the compiled program that takes mini-batch steps.

    `program(params, state, problem, learning_rate, x, y, span, rows, counts) -> (params, state)` with span = (begin,
    steps) takes steps 0, ..., steps - 1; the batch of step s is the first counts[s] of the rows begin + rows[s].
    """
    small = model.small and batch_size <= SMALL
    take = _rows if small else one_kernel(_rows)

    def program(
        params: Tree,
        state: Tree,
        problem: Subproblem,
        learning_rate: jax.Array,
        x: jax.Array,
        y: jax.Array,
        span: jax.Array,
        rows: jax.Array,
        counts: jax.Array,
    ) -> tuple[Tree, Tree]:
        begin, steps = span

        def take_step(s: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            params, state = carry
            batch = begin + lax.dynamic_index_in_dim(rows, s, keepdims=False)
            count = lax.dynamic_index_in_dim(counts, s, keepdims=False)
            xs, ys = take(x, y, batch)
            weights = jnp.where(jnp.arange(batch_size) < count, 1.0 / count, 0.0)
            gradient = add_terms(problem, params, mean_gradient(model, params, xs, ys, weights))
            return solver.step(params, gradient, state, learning_rate)

        return lax.fori_loop(0, steps, take_step, (params, state))

    return compiled(one_kernel(program) if small else program)


@lru_cache(maxsize=32)
def fullbatch_program(model: Model, solver: Solver, block: int) -> Callable[..., Any]:
    """Return the compiled program that takes steps with the gradient of the whole local data set.

    `program(params, state, problem, learning_rate, x, y, span) -> (params, state)` with span = (begin, count, steps).
    """

    def program(
        params: Tree,
        state: Tree,
        problem: Subproblem,
        learning_rate: jax.Array,
        x: jax.Array,
        y: jax.Array,
        span: jax.Array,
    ) -> tuple[Tree, Tree]:
        begin, count, steps = span

        def take_step(_: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            params, state = carry
            gradient = device_gradient(model, params, x, y, begin, count, block)
            return solver.step(params, add_terms(problem, params, gradient), state, learning_rate)

        return lax.fori_loop(0, steps, take_step, (params, state))

    return compiled(program)


def _rows(x: jax.Array, y: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the given rows, which are known to exist."""
    xs, ys = (array.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False) for array in (x, y))
    return xs, ys
