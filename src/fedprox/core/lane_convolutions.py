"""Convolutions of images whose last axis is the example: (height, channels, width, examples).

A vector register then holds one pixel of several examples, however few channels there are, where the usual order of
axes fills it with channels. LeNet has 3, 6 and 16 of them.

For each row of an image, the pixels that lie under the window are copied side by side into one matrix, with a row for
each column d of the window, row r of the window and channel c, and a column for each place x and example n:

    P[(d, r, c), (x, n)] = image[y + r, c, x + d, n]

The convolution is then W P for each row y, its derivative by the weights the sum of P C_y^T with the change C_y of the
outputs, and its derivative by the image W^T C_y, added up where it came from. These matrices are small enough for the
processor's cache, and large enough for XLA's products.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["convolve", "derivative_by_weights", "spread"]

Padding = Sequence[tuple[int, int]]


def convolve(image: jax.Array, weights: jax.Array, padding: Padding) -> jax.Array:
    """Return out[y, o, x, n] = sum over r, d, c of weights[r, d, c, o] image[y + r, c, x + d, n]."""
    image = _padded(image, padding)
    height, width, _, outputs = weights.shape
    rows, columns, examples = image.shape[0] - height + 1, image.shape[2] - width + 1, image.shape[3]
    matrix = _as_matrix(weights).T

    def add_row(row: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        patches = _fill(state[0], image, row, height, width)
        made = (matrix @ patches).reshape(1, outputs, columns, examples)
        return patches, lax.dynamic_update_slice_in_dim(state[1], made, row, axis=0)

    start = (_no_patches(image, weights.shape), jnp.zeros((rows, outputs, columns, examples), image.dtype))
    return lax.fori_loop(0, rows, add_row, start)[1]


def derivative_by_weights(image: jax.Array, change: jax.Array, padding: Padding) -> jax.Array:
    """Return the sum over y, x, n of image[y + r, c, x + d, n] change[y, o, x, n], as (r, d, c, o)."""
    image = _padded(image, padding)
    rows, outputs, columns, examples = change.shape
    shape = (image.shape[0] - rows + 1, image.shape[2] - columns + 1, image.shape[1], -(-outputs // _LANES) * _LANES)
    change = jnp.pad(change, ((0, 0), (0, shape[-1] - outputs), (0, 0), (0, 0)))
    change = change.reshape(rows, shape[-1], columns * examples)

    def add_row(row: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        patches = _fill(state[0], image, row, *shape[:2])
        return patches, state[1] + patches @ lax.dynamic_index_in_dim(change, row, keepdims=False).T

    patches = _no_patches(image, shape)
    total = lax.fori_loop(0, rows, add_row, (patches, jnp.zeros((len(patches), shape[-1]), image.dtype)))[1]
    height, width, inputs, _ = shape
    return total[:, :outputs].reshape(width, height, inputs, outputs).transpose(1, 0, 2, 3)


def spread(image: jax.Array, weights: jax.Array, padding: Padding) -> jax.Array:
    """Return what `convolve` does, as the sum of what each row of the image adds to the rows around it.

    This takes fewer operations where the result has more pixels than the image, as the derivative of a convolution by
    its image does.
    """
    height, width, _, outputs = weights.shape
    rows, inputs, columns, examples = image.shape
    matrix = _as_matrix(weights[::-1, ::-1].swapaxes(2, 3))

    def add_row(row: jax.Array, total: jax.Array) -> jax.Array:
        pixels = lax.dynamic_index_in_dim(image, row, keepdims=False).reshape(inputs, columns * examples)
        parts = (matrix @ pixels).reshape(width, height, outputs, columns, examples)
        added = lax.dynamic_slice_in_dim(total, row, height, axis=0)
        for place in range(width):
            added += jnp.pad(parts[place], ((0, 0), (0, 0), (place, width - 1 - place), (0, 0)))
        return lax.dynamic_update_slice_in_dim(total, added, row, axis=0)

    start = jnp.zeros((rows + height - 1, outputs, columns + width - 1, examples), image.dtype)
    whole = lax.fori_loop(0, rows, add_row, start)
    sides = zip(padding, (height, width), strict=True)
    return _padded(whole, [(low - side + 1, high - side + 1) for (low, high), side in sides])


def _as_matrix(weights: jax.Array) -> jax.Array:
    """Return weights (r, d, c, o) as a matrix of rows (d, r, c) and columns o."""
    return weights.transpose(1, 0, 2, 3).reshape(-1, weights.shape[-1])


def _padded(image: jax.Array, padding: Padding) -> jax.Array:
    (above, below), (left, right) = padding
    zero = jnp.zeros((), image.dtype)
    return lax.pad(image, zero, [(above, below, 0), (0, 0, 0), (left, right, 0), (0, 0, 0)])


def _no_patches(image: jax.Array, window: Sequence[int]) -> jax.Array:
    """Return the matrix that `_fill` writes to: one for all rows, so that it is not allocated for each."""
    height, width, inputs, _ = window
    return jnp.zeros((height * width * inputs, (image.shape[2] - width + 1) * image.shape[3]), image.dtype)


def _fill(patches: jax.Array, image: jax.Array, row: jax.Array, height: int, width: int) -> jax.Array:
    """Return the matrix P of one row; the barrier keeps XLA from writing it twice."""
    rows = lax.dynamic_slice_in_dim(image, row, height, axis=0)
    count, columns = height * image.shape[1], image.shape[2] - width + 1
    for place in range(width):
        part = rows[:, :, place : place + columns].reshape(count, -1)
        patches = lax.dynamic_update_slice(patches, part, (place * count, 0))
    return lax.optimization_barrier(patches)


_LANES = 8  # outputs that a product makes at once
