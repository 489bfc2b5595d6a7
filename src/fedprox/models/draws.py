"""Weights of any shape: constant ones, and random ones as the first of a longer row of numbers.

JAX compiles a program for every shape that is drawn, and one takes as long as a hundred additions. Its generator
numbers what it draws, so that a row begins with the numbers of every shorter one; rows of few lengths serve all shapes.
"""

from __future__ import annotations

import math

import jax
import numpy as np

__all__ = ["constant", "keys", "normal", "uniform"]

_LENGTHS = tuple(16**power for power in range(2, 6))  # up to a million numbers, the most that are drawn for nothing


def constant(shape: int | tuple[int, ...], value: float = 0.0) -> jax.Array:
    """Return weights that are all alike; `jnp.zeros` would compile a program for each shape."""
    return jax.device_put(np.full(shape, value))


def keys(key: jax.Array, count: int) -> list[jax.Array]:
    """Return keys for the parts of a model: those of `jax.random.split`."""
    several = jax.random.split(key, _length(key, count))
    if isinstance(key, jax.core.Tracer):
        return [several[place] for place in range(count)]
    impl = jax.random.key_impl(key)
    return [jax.random.wrap_key_data(row, impl=impl) for row in np.asarray(jax.random.key_data(several))[:count]]


def normal(key: jax.Array, shape: tuple[int, ...], deviation: float) -> jax.Array:
    """Return normal numbers of mean 0: `deviation` times those of `jax.random.normal`.

    >>> normal(jax.random.key(0), (2, 3), deviation=0.1).shape
    (2, 3)
    """
    return _first(jax.random.normal(key, (_length(key, math.prod(shape)),)), shape, deviation)


def uniform(key: jax.Array, shape: tuple[int, ...], limit: float) -> jax.Array:
    """Return numbers uniform in +-limit: those of `jax.random.uniform`."""
    row = jax.random.uniform(key, (_length(key, math.prod(shape)),), minval=-limit, maxval=limit)
    return _first(row, shape)


def _length(key: jax.Array, count: int) -> int:
    """Return how many numbers to draw for `count` of them."""
    is_numbered = getattr(jax.config, "jax_threefry_partitionable", False)
    begins_alike = is_numbered and str(jax.random.key_impl(key)) == "threefry2x32"
    return next((length for length in _LENGTHS if length >= count), count) if begins_alike else count


def _first(row: jax.Array, shape: tuple[int, ...], factor: float = 1.0) -> jax.Array:
    # by NumPy where there are numbers already: it compiles nothing
    values = row if isinstance(row, jax.core.Tracer) else np.asarray(row)
    return jax.device_put(factor * values[: math.prod(shape)].reshape(shape))
