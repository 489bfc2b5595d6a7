"""Values, gradients and curvature of h_k, for solvers that work on all of a device's data at once.

Each evaluation costs as much as one epoch, ceil(n_k / b) mini-batch steps, and the budget decides how many are left.
The parameters are one flat vector; the solver's own arithmetic is done in double precision on the host, the passes over
the data in the model's precision by programs whose shape does not depend on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from fedprox.core.compilation import compiled
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.models.untrained import after_step
from fedprox.solvers.solver import LocalProblem, span
from fedprox.solvers.subproblem import (
    Subproblem,
    add_terms,
    add_terms_to_value,
    device_curvature,
    device_value_and_gradient,
    flat_mu,
)

__all__ = ["Oracle", "Point", "Vector"]

Vector = NDArray[np.float64]


class Point(NamedTuple):
    """A point, with the value and gradient of h_k there."""

    at: Vector
    value: float
    gradient: Vector

    @property
    def norm(self) -> float:
        """||grad h_k||."""
        return float(np.linalg.norm(self.gradient))


class Oracle:
    """Evaluates the subproblem of one device, and counts the steps that it costs."""

    def __init__(self, local: LocalProblem) -> None:
        flat, self._unflatten = ravel_pytree(local.start)
        self.start: Vector = np.asarray(flat, np.float64)
        self.precision = flat.dtype
        self.spent = 0
        self._local = local
        self._data = (local.problem, local.loaded.x, local.loaded.y)
        self._evaluate, self._multiply = _programs(local.model, local.loaded.block, local.loaded.typical)

    def affords(self, answers: int) -> bool:
        """Return whether the budget is enough for that many more evaluations."""
        return self._local.affords(self.spent + answers * self._local.steps_per_epoch)

    def rounded(self, vector: Vector) -> Vector:
        """Return a point in the parameters' own precision, as the device will report it."""
        return vector.astype(self.precision).astype(np.float64)

    def tree(self, vector: Vector) -> Tree:
        """Return the parameters at a point."""
        return self._unflatten(jax.numpy.asarray(vector, self.precision))

    def point(self, vector: Vector) -> Point:
        """Return h_k and its gradient at a point."""
        at = self.rounded(vector)
        value, gradient = self._evaluate(at.astype(self.precision), *self._data, self._pay())
        return Point(at, float(value), np.asarray(gradient, np.float64))

    def curvature(self, at: Vector, along: Vector) -> Vector:
        """Return the Hessian of h_k at a point, times a vector."""
        places = at.astype(self.precision), along.astype(self.precision)
        return np.asarray(self._multiply(*places, *self._data, self._pay()), np.float64)

    def compile(self, curvature: bool = False) -> None:
        """Compile the programs by running them over no samples."""
        nothing, at = span(self._local.begin, 0), self.start.astype(self.precision)
        self._evaluate(at, *self._data, nothing)
        if curvature:
            self._multiply(at, at, *self._data, nothing)

    def _pay(self) -> NDArray[np.int32]:
        self.spent += self._local.steps_per_epoch
        return span(self._local.begin, self._local.count)


@lru_cache(maxsize=32)
def _programs(model: Model, block: int, typical: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the compiled programs for values with gradients, and for curvature; span = (begin, count)."""

    def evaluate(
        flat: jax.Array, problem: Subproblem, x: jax.Array, y: jax.Array, span: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        params = after_step(model, problem.anchor, ravel_pytree(problem.anchor)[1](flat))
        value, gradient = device_value_and_gradient(model, params, x, y, span[0], span[1], block)
        return add_terms_to_value(problem, params, value), ravel_pytree(add_terms(problem, params, gradient))[0]

    def multiply(
        flat: jax.Array, along: jax.Array, problem: Subproblem, x: jax.Array, y: jax.Array, span: jax.Array
    ) -> jax.Array:
        tree = ravel_pytree(problem.anchor)[1]
        product = device_curvature(model, tree(flat), tree(along), x, y, span[0], span[1], typical)
        return ravel_pytree(product)[0] + flat_mu(problem) * along

    return compiled(evaluate, small=model.small), compiled(multiply)
