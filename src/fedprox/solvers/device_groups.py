"""Many small devices in one call of a compiled program.

A device with a few samples takes microseconds for its steps, and a call from Python, with all that surrounds it, takes
a hundred. Here a loop over the devices is compiled around the loop over the steps: each device starts from the model
that it was given, with its own samples, budget and mini-batches, and the solutions come out as one array with a line
for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.compilation import compiled, is_plain_arithmetic
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.solvers.solver import Solver
from fedprox.solvers.stepwise import Place, Stepwise, is_one_kernel, line, minibatch_steps, take_rows
from fedprox.solvers.subproblem import Subproblem

__all__ = ["group_program", "solves_groups"]


def solves_groups(model: Model, solver: Solver, batch_size: int) -> bool:
    """Return whether `group_program` can be compiled: the steps fit into one kernel, on a CPU."""
    if jax.default_backend() != "cpu" or not isinstance(solver, Stepwise) or type(solver).solve is not Stepwise.solve:
        return False
    if batch_size == 0 or not is_one_kernel(model, solver, batch_size):
        return False
    return is_plain_arithmetic(solver.init, jax.eval_shape(model.init, jax.random.key(0)))


@lru_cache(maxsize=32)
def group_program(model: Model, solver: Stepwise, batch_size: int) -> Callable[..., Any]:
    """Return the compiled program that takes the mini-batch steps of many devices, one device after another.

    `program(problem, learning_rate, x, y, places, devices, rows) -> params` for the first `devices` lines of `places`.
    Each is (begin, count, steps, row, version): a device's rows of x and y, how many steps it takes, which of `rows` is
    its first mini-batch, and which line of the anchor, of mu and of the learning rate is its own. Every device starts
    at its anchor and with a new epoch, and takes the steps of `minibatch_program`, bit for bit. The parameters that
    come out, and the linear term where there is one, have a line for each device.
    """
    take_steps = minibatch_steps(model, solver, batch_size, take_rows)

    def program(
        problem: Subproblem,
        learning_rates: jax.Array,
        x: jax.Array,
        y: jax.Array,
        places: jax.Array,
        devices: jax.Array,
        rows: jax.Array,
    ) -> Tree:
        given = (problem.anchor, problem.mu, learning_rates)
        only = jax.tree.map(lambda leaf: leaf[0], given) if len(learning_rates) == 1 else None

        def solve(k: jax.Array, found: Tree) -> Tree:
            begin, samples, steps, row, version = line(places, k)
            start, mu, learning_rate = only or jax.tree.map(lambda leaf: line(leaf, version), given)
            own = Subproblem(start, mu, jax.tree.map(lambda leaf: line(leaf, k), problem.linear))
            place = Place(begin, samples, 0, steps, row)
            params, _ = take_steps(start, solver.init(start), own, learning_rate, x, y, place, rows)
            return jax.tree.map(lambda lines, one: lax.dynamic_update_index_in_dim(lines, one, k, 0), found, params)

        nothing = jax.tree.map(lambda leaf: jnp.zeros((len(places), *leaf.shape[1:]), leaf.dtype), problem.anchor)
        return lax.fori_loop(0, devices, solve, nothing)

    return compiled(program, small=True)
