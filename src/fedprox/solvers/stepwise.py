"""Solvers that take a step for each mini-batch gradient, and the one loop that runs them.

Such a solver is a pair of pure functions: the state it starts with, and one step from a gradient of the subproblem.
The loop passes it the gradients of mini-batches (with batch size 0, of the entire local data set) until the budget is
spent. Number of steps, sizes, mu and learning rate are arguments of one compiled program, never part of its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.compilation import compiled, is_plain_arithmetic, needs_its_first
from fedprox.core.kernels import SMALL, one_kernel
from fedprox.core.trees import Tree
from fedprox.models import Model, mean_gradient
from fedprox.models.model import WideForm
from fedprox.models.parameter_shapes import parameter_shapes
from fedprox.models.untrained import after_step, training_gradient
from fedprox.population.loaded_samples import scalar
from fedprox.solvers.inexactness import gradient_norm_program, inexactness
from fedprox.solvers.solver import LocalProblem, span
from fedprox.solvers.subproblem import Subproblem, add_terms, device_gradient

__all__ = [
    "Place",
    "Stepwise",
    "Target",
    "fullbatch_program",
    "is_one_kernel",
    "line",
    "minibatch_program",
    "minibatch_steps",
    "steps_per_call",
    "take_rows",
    "wide_form",
]


def _gradient_itself(gradient: Callable[[Tree], Tree], params: Tree, state: Tree) -> Tree:
    return gradient(params)


@dataclass(frozen=True)
class Stepwise:
    """A solver defined by its step.

    Attributes:
      name: its name in configs and records.
      init: `init(params) -> state` at the start of every local solve.
      step: `step(params, gradient, state, learning_rate) -> (params, state)`.
      is_sgd: whether a step moves along the gradient (or a fixed combination of past ones).
      estimate: `estimate(gradient, params, state)`, the estimate of grad F_k that a mini-batch gives; `gradient(w)` is
        the gradient of the mini-batch's mean loss at w.
    """

    name: str
    init: Callable[[Tree], Tree]
    step: Callable[[Tree, Tree, Tree, jax.Array], tuple[Tree, Tree]]
    is_sgd: bool = False
    estimate: Callable[[Callable[[Tree], Tree], Tree, Tree], Tree] = _gradient_itself
    stops_at_gamma_alone: ClassVar[bool] = True  # nothing else ends it before its budget
    uses_model_training: ClassVar[bool] = True  # batch statistics come from `Model.training`
    spends_budget: ClassVar[bool] = True  # without a target for gamma it takes exactly as many steps

    @property
    def updates_statistics(self) -> bool:
        """Whether the statistics of a model are collected by its steps."""
        return self.estimate is _gradient_itself

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Take steps up to the budget, or until the iterate is gamma-inexact at the end of an epoch."""
        target = Target(local) if local.gamma > 0 else None
        params, taken = local.start, 0
        if target is not None and target.is_met(params):
            return params, taken
        state = self.init(params)
        learning_rate = scalar(local.learning_rate)
        fixed = (local.problem, learning_rate, local.loaded.x, local.loaded.y)
        if local.batch_size == 0:
            program = fullbatch_program(local.model, self, local.loaded.block)
            for steps in local.fullbatch_steps(0 if target is None else 1):
                params, state = program(params, state, *fixed, span(local.begin, local.count, steps))
                taken += steps
                if target is not None and target.is_met(params):
                    break
            return params, taken
        program = minibatch_program(local.model, self, local.batch_size)
        begin, count = local.begin, local.count
        piece = steps_per_call(local.model, local.batch_size)
        for rows, first, steps in local.minibatches(piece, epochs_at_once=0 if target is None else 1):
            params, state = program(params, state, *fixed, span(begin, count, first, steps), rows)
            taken += steps
            if target is not None and taken % local.steps_per_epoch == 0 and target.is_met(params):
                break
        return params, taken


@lru_cache(maxsize=32)
def steps_per_call(model: Model, batch_size: int) -> int:
    """Return how many steps are taken in one call of the compiled loop.

    Many, so that the cost of a call is small; fewer for a larger model, because their orders share the cache with its
    data, and because no signal is handled during a call.
    """
    shapes = parameter_shapes(model)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return max(16, min(1024, 2**25 // (batch_size * max(parameters, 1))))


class Target:
    """The stopping rule ||grad h(w)|| <= gamma ||grad h(start)||; each check costs one gradient over all samples."""

    def __init__(self, local: LocalProblem) -> None:
        self._local = local
        self._norm_at_start = self._norm(local.start)

    def is_met(self, params: Tree) -> bool:
        """Return whether the iterate is gamma-inexact."""
        norm = self._norm_at_start if params is self._local.start else self._norm(params)
        return inexactness(norm, self._norm_at_start) <= self._local.gamma

    def _norm(self, params: Tree) -> float:
        local = self._local
        program = gradient_norm_program(local.model, local.loaded.block)
        return float(program(params, local.problem, local.loaded.x, local.loaded.y, span(local.begin, local.count)))


@lru_cache(maxsize=32)
def minibatch_program(model: Model, solver: Stepwise, batch_size: int) -> Callable[..., Any]:
    """Return the compiled program that takes mini-batch steps.

    `program(params, state, problem, learning_rate, x, y, span, rows) -> (params, state)` with span = (begin, count,
    first, steps) takes them, of a device with `count` rows of x and y from `begin` on. The batch of step s is
    the rows begin + rows[s], only the first of them where it is the short one that ends an epoch; `first` steps of the
    epoch come before step 0.
    """
    small = is_one_kernel(model, solver, batch_size)
    take_steps = minibatch_steps(model, solver, batch_size, take_rows if small else one_kernel(take_rows))
    wide = wide_form(model, solver)

    def program(
        params: Tree,
        state: Tree,
        problem: Subproblem,
        learning_rate: jax.Array,
        x: jax.Array,
        y: jax.Array,
        span: jax.Array,
        rows: jax.Array,
    ) -> tuple[Tree, Tree]:
        linear = None if problem.linear is None else wide.widen(problem.linear)
        own = Subproblem(wide.widen(problem.anchor), problem.mu, linear)
        found, state = take_steps(wide.widen(params), state, own, learning_rate, x, y, Place(*span), rows)
        return wide.narrow(found), state

    return compiled(program, small=small)


def wide_form(model: Model, solver: Stepwise) -> WideForm:
    """Return the form in which a loop over mini-batches holds the parameters: wide, or as they are.

    SGD without momentum can have them wide: where the gradient is zero, so are its steps, and it has no state.
    """
    shapes = parameter_shapes(model)
    is_plain = solver.is_sgd and not jax.tree.leaves(jax.eval_shape(solver.init, shapes))
    return model.wide if model.wide is not None and is_plain else WideForm(0, _as_it_is, _as_it_is)


def _as_it_is(params: Tree) -> Tree:
    return params


def is_one_kernel(model: Model, solver: Stepwise, batch_size: int) -> bool:
    """Return whether the loop over mini-batches is best compiled into one kernel."""
    shapes = parameter_shapes(model)
    products = batch_size * sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return model.small and batch_size <= SMALL and products <= _MOST_PRODUCTS and _is_plain(model, solver)


_MOST_PRODUCTS = 1 << 17  # of parameters and examples: for more, the library is faster


class Place(NamedTuple):
    """Which steps a device takes."""

    begin: Any  # its first row of x and y
    samples: Any
    first: Any  # the steps of the epoch that come before
    steps: Any
    row: Any = 0  # where its mini-batches begin in `rows`


def minibatch_steps(model: Model, solver: Stepwise, batch_size: int, take: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loop over the mini-batches of a device, with `take(x, y, rows)` for the rows of each."""

    def take_steps(
        params: Tree,
        state: Tree,
        problem: Subproblem,
        learning_rate: jax.Array,
        x: jax.Array,
        y: jax.Array,
        place: Place,
        rows: jax.Array,
    ) -> tuple[Tree, Tree]:
        per_epoch = -(-place.samples // batch_size)

        def take_step(s: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            params, state = carry
            batch = place.begin + line(rows, place.row + s)
            count = jnp.minimum(batch_size, place.samples - lax.rem(place.first + s, per_epoch) * batch_size)
            xs, ys = take(x, y, batch)
            weights = jnp.where(jnp.arange(batch_size) < count, 1.0 / count, 0.0)
            fresh = None
            if model.training is None:
                own = solver.estimate(lambda at: mean_gradient(model, at, xs, ys, weights), params, state)
            else:
                own, fresh = training_gradient(model, params, xs, ys, weights)
            stepped, state = solver.step(params, add_terms(problem, params, own), state, learning_rate)
            return after_step(model, params, stepped, fresh), state

        return lax.fori_loop(0, place.steps, take_step, (params, state))

    return take_steps


def line(array: jax.Array, index: jax.Array) -> jax.Array:
    """Return array[index], which is known to exist."""
    rest = array.shape[1:]  # lax.dynamic_index_in_dim would be a call of its own, which XLA fuses with nothing
    found = lax.dynamic_slice(array, (index, *(0 for _ in rest)), (1, *rest), allow_negative_indices=False)
    return lax.squeeze(found, (0,))


@lru_cache(maxsize=32)
def fullbatch_program(model: Model, solver: Stepwise, block: int) -> Callable[..., Any]:
    """Return the compiled program that takes steps with the gradient of the entire local data set.

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
            stepped, state = solver.step(params, add_terms(problem, params, gradient), state, learning_rate)
            return after_step(model, params, stepped), state

        return lax.fori_loop(0, steps, take_step, (params, state))

    return compiled(program, small=model.small and _is_plain(model, solver))


def _is_plain(model: Model, solver: Stepwise) -> bool:
    """Return whether the solver's step is plain arithmetic on the data, as a loop in one kernel must be.

    XLA aborts the process over a kernel whose data are not used.
    """

    def step(data: Tree, params: Tree, state: Tree, learning_rate: jax.Array) -> tuple[Tree, Tree]:
        own = solver.estimate(lambda at: jax.tree.map(jnp.add, at, data), params, state)
        return solver.step(params, own, state, learning_rate)

    params = parameter_shapes(model)
    state = jax.eval_shape(solver.init, params)
    shapes = (params, params, state, jax.ShapeDtypeStruct((), jnp.float32))
    return is_plain_arithmetic(step, *shapes) and needs_its_first(step, *shapes)


def take_rows(x: jax.Array, y: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the given rows, which are known to exist."""
    xs, ys = (array.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False) for array in (x, y))
    return xs, ys
