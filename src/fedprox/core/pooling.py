"""The derivative of a maximum over windows that do not overlap, by comparisons, which XLA runs fast on a CPU."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["max_pooling_derivative"]


def max_pooling_derivative(source: jax.Array, operand: jax.Array, *, window_dimensions: Any, **_: Any) -> jax.Array:
    """Return the source at the first largest entry of each window, and zeros elsewhere; windows do not overlap."""
    covered = [count * size for count, size in zip(source.shape, window_dimensions, strict=True)]
    places = list(itertools.product(*map(range, window_dimensions)))
    entries = [lax.slice(operand, place, covered, window_dimensions) for place in places]
    largest, where = entries[0], jnp.zeros(source.shape, jnp.int32)
    for index, entry in enumerate(entries[1:], start=1):
        larger = entry > largest
        largest, where = jnp.where(larger, entry, largest), jnp.where(larger, index, where)
    spread = jnp.stack([jnp.where(where == index, source, 0) for index in range(len(places))])
    spread = spread.reshape(*window_dimensions, *source.shape)
    count = source.ndim
    spread = lax.transpose(
        spread, [axis for pair in zip(range(count, 2 * count), range(count), strict=True) for axis in pair]
    )
    rest = [(0, whole - part, 0) for whole, part in zip(operand.shape, covered, strict=True)]
    return lax.pad(spread.reshape(covered), jnp.zeros((), source.dtype), rest)
