"""Many small devices in one call of a compiled program.

The steps of a device with a few samples take microseconds, and a call from Python, with its overhead, takes a hundred.
Here a loop over the devices is compiled around the loop over the steps: each device draws its mini-batches, starts from
the model that it was given, and takes its steps. The solutions come out as one array with a line for each, or already
added up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from fedprox.core.compilation import compiled, is_plain_arithmetic
from fedprox.core.compiled_philox import halves
from fedprox.core.randomness import Purpose
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.models.parameter_shapes import parameter_shapes
from fedprox.participation.compiled_orders import Orders, draw_orders, empty_orders
from fedprox.solvers.solver import Solver
from fedprox.solvers.stepwise import Place, Stepwise, is_one_kernel, line, minibatch_steps, take_rows, wide_form
from fedprox.solvers.subproblem import Subproblem

__all__ = ["GroupData", "group_places", "group_program", "group_sum_program", "order_key", "solves_groups"]


class GroupData(NamedTuple):
    """What the programs read besides the subproblems."""

    x: jax.Array
    y: jax.Array
    key: Any  # of the draws, by `order_key`
    places: Any  # the devices, by `group_places`
    devices: Any  # the number of places in use


def order_key(seed: int) -> NDArray[np.uint32]:
    """Return what the draws of mini-batches in a run have in common."""
    return halves(np.array([seed, int(Purpose.ORDER)], np.uint64))


def group_places(
    begins: NDArray[np.int64],
    samples: NDArray[np.int64],
    steps: NDArray[np.int64],
    versions: NDArray[np.int64] | int,
    rounds: NDArray[np.int64] | int,
    devices: NDArray[np.int64],
    lines: int,
) -> NDArray[np.int32]:
    """Return a line for each device, and further ones without work.

    A line has a device's first row of x and y, the number of its rows, its number of steps, which version of anchor, mu
    and learning rate is its own, and the round and the device for its draws. All are below 2^31, as the samples are.
    """
    places = np.zeros((lines, 6), np.int32)
    places[:, 1] = 1
    for column, values in enumerate((begins, samples, steps, versions, rounds, devices)):
        places[: len(devices), column] = values
    return places


def solves_groups(model: Model, solver: Solver, batch_size: int) -> bool:
    """Return whether the programs can be compiled: the steps fit into one kernel, on a CPU."""
    if jax.default_backend() != "cpu" or not isinstance(solver, Stepwise) or type(solver).solve is not Stepwise.solve:
        return False
    if batch_size == 0 or not is_one_kernel(model, solver, batch_size):
        return False
    return is_plain_arithmetic(solver.init, parameter_shapes(model))


@lru_cache(maxsize=32)
def group_program(model: Model, solver: Stepwise, batch_size: int, most_steps: int) -> Callable[..., Any]:
    """Return the compiled program that takes the mini-batch steps of many devices, one device after another.

    `program(problem, learning_rates, data) -> params`. Every device starts at its anchor and takes the steps of
    `minibatch_program`, bit for bit. The parameters that come out, and the linear term where there is one, have a line
    for each device; anchor, mu and learning rate have one for each version. No device begins epochs with more than
    `most_steps` steps.
    """
    wide = wide_form(model, solver)

    def program(problem: Subproblem, learning_rates: jax.Array, data: GroupData) -> Tree:
        solve_one = _solver_of_one(model, solver, batch_size, problem, learning_rates, data)

        def solve(k: jax.Array, found: tuple[Orders, Tree]) -> tuple[Orders, Tree]:
            orders, lines = found
            orders, params = solve_one(orders, k)
            return orders, jax.tree.map(lambda leaf, one: _put(leaf, one, k), lines, wide.narrow(params))

        nothing = jax.tree.map(lambda leaf: jnp.zeros((len(data.places), *leaf.shape[1:]), leaf.dtype), problem.anchor)
        return lax.fori_loop(0, data.devices, solve, (empty_orders(most_steps, batch_size), nothing))[1]

    return compiled(program, small=True)


@lru_cache(maxsize=32)
def group_sum_program(model: Model, solver: Stepwise, batch_size: int, most_steps: int) -> Callable[..., Any]:
    """Return the compiled program that adds the parameters of `group_program` up, each times its device's weight.

    `program(problem, learning_rates, data, weights) -> sum`, along the tree over the places (`TreeSum`), of which those
    without steps add zero. At most one partial sum for each level of the tree is held, like the digits of a binary
    number that counts the devices.
    """
    wide = wide_form(model, solver)

    def program(problem: Subproblem, learning_rates: jax.Array, data: GroupData, weights: jax.Array) -> Tree:
        solve_one = _solver_of_one(model, solver, batch_size, problem, learning_rates, data)
        levels = (len(data.places) - 1).bit_length() + 1

        def solve(k: jax.Array, found: tuple[Orders, Tree]) -> tuple[Orders, Tree]:
            orders, partial = found
            orders, params = solve_one(orders, k)
            weight, takes_part = line(weights, k), line(data.places, k)[2] > 0
            value = jax.tree.map(lambda leaf: jnp.where(takes_part, weight * leaf, 0.0), params)
            full = lax.population_count((k ^ (k + 1)) >> 1)  # the levels below it that have a sum

            def add(level: jax.Array, value: Tree) -> Tree:
                return jax.tree.map(lambda sums, one: line(sums, level) + one, partial, value)

            value = lax.fori_loop(0, full, add, value)
            return orders, jax.tree.map(lambda sums, one: _put(sums, one, full), partial, value)

        one = jax.eval_shape(wide.widen, jax.tree.map(lambda leaf: leaf[0], problem.anchor))
        nothing = jax.tree.map(lambda leaf: jnp.zeros((levels, *leaf.shape), leaf.dtype), one)
        start = (empty_orders(most_steps, batch_size), nothing)
        _, partial = lax.fori_loop(0, data.devices, solve, start)

        def add_left(level: jax.Array, total: Tree) -> Tree:
            is_left = (data.devices >> level) & 1 == 1
            return jax.tree.map(lambda sums, one: jnp.where(is_left, line(sums, level) + one, one), partial, total)

        # adding -0 changes no number, not even the sign of a zero
        minus_zero = jax.tree.map(lambda leaf: jnp.full(leaf.shape, -0.0, leaf.dtype), one)
        return wide.narrow(lax.fori_loop(0, levels, add_left, minus_zero))

    return compiled(program, small=True)


def _solver_of_one(
    model: Model,
    solver: Stepwise,
    batch_size: int,
    problem: Subproblem,
    learning_rates: jax.Array,
    data: GroupData,
) -> Callable[[Orders, jax.Array], tuple[Orders, Tree]]:
    """Return the function that draws the mini-batches of the device at a place, and takes its steps.

    What it returns has the wide form. Only what one device needs is widened: XLA would divide more among threads, which
    the code of a single kernel cannot do.
    """
    take_steps = minibatch_steps(model, solver, batch_size, take_rows)
    wide = wide_form(model, solver)
    given = (problem.anchor, problem.mu, learning_rates)
    first = jax.tree.map(lambda leaf: leaf[0], given)
    only = (wide.widen(first[0]), *first[1:]) if len(learning_rates) == 1 else None

    def solve_one(orders: Orders, k: jax.Array) -> tuple[Orders, Tree]:
        begin, samples, steps, version, round, device = line(data.places, k)
        if only is not None:
            start, mu, rate = only
        else:
            anchor, mu, rate = jax.tree.map(lambda leaf: line(leaf, version), given)
            start = wide.widen(anchor)
        drawn_for = jnp.stack([round, _NO_UPPER_HALF, device, _NO_UPPER_HALF]).astype(jnp.uint32)
        orders = draw_orders(orders, data.key, drawn_for, samples, steps, batch_size)
        linear = None if problem.linear is None else jax.tree.map(lambda leaf: line(leaf, k), problem.linear)
        own = Subproblem(start, mu, None if linear is None else wide.widen(linear))
        rows = orders.rows.reshape(-1, batch_size)
        params, _ = take_steps(
            start, solver.init(start), own, rate, data.x, data.y, Place(begin, samples, 0, steps), rows
        )
        return orders, params

    return solve_one


_NO_UPPER_HALF = np.int32(0)


def _put(lines: jax.Array, one: jax.Array, k: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(lines, one[None], (k, *(0 for _ in one.shape)), allow_negative_indices=False)
