"""L, L_minus and B from the data.

L is the largest and -L_minus the smallest eigenvalue that the Hessian of any F_k has anywhere. If a model has a known
bound (`Model.curvature_bound`: softmax regression, least squares) L is that bound, largest over devices, and L_minus is
0: these hold for every w. Otherwise only the curvature at given points can be computed, which is an estimate.

Curvature is found by Lanczos on products of the Hessian with vectors, H v = d/ds grad F_k(w + s v) at s = 0: the
gradient is differentiated along v, so that a product costs about two gradients and no matrix is ever formed. A device's
rows are taken block by block and its size is not part of the compiled program's shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprox.core.compilation import compiled
from fedprox.core.randomness import Purpose, generator, words
from fedprox.core.threads import Workers
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.participation.sampling import draw_without_replacement
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.solvers.subproblem import device_gradient
from fedprox.theory.spectrum import Extremes, lanczos

__all__ = ["Smoothness", "curvature", "dissimilarity_along", "global_curvature", "smoothness"]


@dataclass(frozen=True)
class Smoothness:
    """The L and L_minus of a population, over all its F_k."""

    L: float
    L_minus: float
    is_bound: bool  # true: holds for every w; false: an estimate from curvature at points
    source: str  # how they were found


def curvature(population: Population, model: Model, params: Tree, devices: Sequence[int]) -> list[Extremes]:
    """Return the extreme eigenvalues of the Hessian of F_k at `params` for each of the devices.

    >>> from fedprox.models import linear_regression
    >>> data = Population.from_arrays([[1.0], [3.0]], [0.0, 1.0], device=[0, 0], test=[False, False])
    >>> model = linear_regression(features=1, bias=False)
    >>> round(curvature(data, model, model.init(jax.random.key(0)), [0])[0].largest, 6)  # (1 + 9) / 2
    5.0
    """
    offsets = population.train.offsets
    hessian = _Hessian(population, model, params)
    sizes = [population.train.size(k) for k in devices]
    workers = Workers()
    try:
        return workers.run(lambda k: hessian.extremes(int(offsets[k]), population.train.size(k)), list(devices), sizes)
    finally:
        workers.close()


def global_curvature(population: Population, model: Model, params: Tree) -> Extremes:
    """Return the extreme eigenvalues of the Hessian of f = sum_k p_k F_k, the mean over all training samples."""
    return _Hessian(population, model, params).extremes(0, len(population.train))


def smoothness(
    population: Population, model: Model, points: Iterable[Tree] = (), *, most_devices: int = 100
) -> Smoothness:
    """Return L and L_minus over all devices: the model's bound, or an estimate from the curvature at `points`.

    The estimate uses at most `most_devices` devices, and adds each eigenvalue's residual to it.
    """
    if model.curvature_bound is not None:
        largest = max(model.curvature_bound(population.train.of(k)[0]) for k in range(population.devices))
        return Smoothness(largest, 0.0, True, f"a bound for every w, largest over {population.devices} devices")
    devices = np.arange(population.devices)
    if population.devices > most_devices:
        devices = draw_without_replacement(population.devices, words(most_devices, 0, Purpose.MEASURED_DEVICES))
    found = [extremes for params in points for extremes in curvature(population, model, params, devices.tolist())]
    if not found:
        raise ValueError(f"points must hold parameters at which to measure curvature, since {model.name} has no bound")
    L_minus = max(0.0, *(extremes.residual - extremes.smallest for extremes in found))
    largest = max(*(extremes.largest + extremes.residual for extremes in found), L_minus)
    count = len(found) // len(devices)
    source = f"the curvature of {len(devices)} of {population.devices} devices at {count} models"
    return Smoothness(largest, L_minus, False, source)


def dissimilarity_along(rounds: Iterable[tuple[float, float]], epsilon: float) -> float:
    """Return B_epsilon on a trajectory (Assumption 1): the largest B(w^t) where ||grad f(w^t)||^2 > epsilon.

    `rounds` gives (||grad f(w^t)||^2, B(w^t)). It says nothing about points that were not visited; it is 1, the least
    that B can be, where none has so large a gradient.

    >>> dissimilarity_along([(4.0, 1.2), (1.0, 1.5), (0.01, 9.0)], epsilon=0.1)
    1.5
    """
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be a finite number >= 0; got {epsilon}")
    return max((b for norm2, b in rounds if norm2 > epsilon), default=1.0)


class _Hessian:
    """Hessians of means over consecutive training samples, at one model."""

    def __init__(self, population: Population, model: Model, params: Tree) -> None:
        self._train = LoadedSamples.of(population.train, model)
        flat, self._unflatten = ravel_pytree(params)
        self._params = jax.tree.map(jax.device_put, params)
        self._start = generator(0, Purpose.LANCZOS).normal(size=len(flat))
        typical = int(np.median(np.diff(population.train.offsets)))
        self._program = _program(model, min(1 << (typical.bit_length() - 1), 256))

    def extremes(self, begin: int, count: int) -> Extremes:
        span = np.array([begin, count], np.int32)

        def product(vector: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.floating[Any]]]:
            direction = self._unflatten(jnp.asarray(vector, jnp.float32))
            image = self._program(self._params, direction, self._train.x, self._train.y, span)
            return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(image)])

        return lanczos(product, self._start)


@lru_cache(maxsize=8)
def _program(model: Model, block: int) -> Callable[..., Any]:
    """Return the compiled product `program(params, direction, x, y, (begin, count)) -> H direction`."""

    def program(params: Tree, direction: Tree, x: jax.Array, y: jax.Array, span: jax.Array) -> Tree:
        begin, count = span

        def gradient(params: Tree) -> Tree:
            return device_gradient(model, params, x, y, begin, count, block)

        return jax.jvp(gradient, (params,), (direction,))[1]

    return compiled(program)
