"""Convolutions of images whose last axis is the example: (height, channels, width, examples).

A vector register then holds one pixel of several examples, however few channels there are, where the usual order of
axes fills it with channels. LeNet has 3, 6 and 16 of them.

For each row of an image, the pixels that lie under the window are copied side by side into one matrix, with a row for
each row r and column d of the window and each channel c, and a column for each place x and example n:

    P[(r, d, c), (x, n)] = image[y + r, c, x + d, n]

The convolution is then W P for each row y, its derivative by the weights the sum of P C_y^T with the change C_y of the
outputs, and its derivative by the image W^T C_y, added up where it came from. These matrices are small enough for the
processor's cache, and large enough for XLA's products.

From one row to the next only one row of pixels is new. It takes the place of the oldest, so that the blocks of P stand
in the order (r + y) mod height, and the weights are turned as far.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

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
    turned = jnp.stack([_as_matrix(jnp.roll(weights, turn, axis=0)).T for turn in range(height)])

    def add_row(row: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        patches = _replace_oldest(state[0], image, row + height - 1, height, width)
        made = lax.dynamic_index_in_dim(turned, lax.rem(row, height), keepdims=False) @ patches
        made = made.reshape(1, outputs, columns, examples)
        return patches, lax.dynamic_update_slice_in_dim(state[1], made, row, axis=0)

    out = jnp.zeros((rows, outputs, columns, examples), image.dtype)
    return lax.fori_loop(0, rows, add_row, (_first_patches(image, height, width), out))[1]


def derivative_by_weights(image: jax.Array, change: jax.Array, padding: Padding) -> jax.Array:
    """Return the sum over y, x, n of image[y + r, c, x + d, n] change[y, o, x, n], as (r, d, c, o)."""
    image = _padded(image, padding)
    rows, outputs, columns, examples = change.shape
    height, width, filled = image.shape[0] - rows + 1, image.shape[2] - columns + 1, -(-outputs // _LANES) * _LANES
    change = jnp.pad(change, ((0, 0), (0, filled - outputs), (0, 0), (0, 0)))
    change = change.reshape(rows, filled, columns * examples)

    def add_row(row: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        patches, turn = _replace_oldest(state[0], image, row + height - 1, height, width), lax.rem(row, height)
        added = patches @ lax.dynamic_index_in_dim(change, row, keepdims=False).T
        total = lax.dynamic_index_in_dim(state[1], turn, keepdims=False) + added
        return patches, lax.dynamic_update_index_in_dim(state[1], total, turn, axis=0)

    patches = _first_patches(image, height, width)
    totals = jnp.zeros((height, len(patches), filled), image.dtype)  # one for each order of the blocks
    totals = lax.fori_loop(0, rows, add_row, (patches, totals))[1]
    totals = totals[..., :outputs].reshape(height, height, width, image.shape[1], outputs)
    return reduce(jnp.add, (jnp.roll(totals[turn], -turn, axis=0) for turn in range(height)))


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
        parts = (matrix @ pixels).reshape(height, width, outputs, columns, examples)
        added = lax.dynamic_slice_in_dim(total, row, height, axis=0)
        for place in range(width):
            added += jnp.pad(parts[:, place], ((0, 0), (0, 0), (place, width - 1 - place), (0, 0)))
        return lax.dynamic_update_slice_in_dim(total, added, row, axis=0)

    start = jnp.zeros((rows + height - 1, outputs, columns + width - 1, examples), image.dtype)
    whole = lax.fori_loop(0, rows, add_row, start)
    sides = zip(padding, (height, width), strict=True)
    return _padded(whole, [(low - side + 1, high - side + 1) for (low, high), side in sides])


def _as_matrix(weights: jax.Array) -> jax.Array:
    """Return weights (r, d, c, o) as a matrix of rows (r, d, c) and columns o."""
    return weights.reshape(-1, weights.shape[-1])


def _padded(image: jax.Array, padding: Padding) -> jax.Array:
    (above, below), (left, right) = padding
    zero = jnp.zeros((), image.dtype)
    return lax.pad(image, zero, [(above, below, 0), (0, 0, 0), (left, right, 0), (0, 0, 0)])


def _first_patches(image: jax.Array, height: int, width: int) -> jax.Array:
    """Return the matrix P before the first row of outputs, which lacks one row of pixels."""
    inputs, columns = image.shape[1], image.shape[2] - width + 1
    empty = jnp.zeros((height * width * inputs, columns * image.shape[3]), image.dtype)
    fill = partial(_replace_oldest, image=image, height=height, width=width)
    return lax.fori_loop(0, height - 1, lambda row, patches: fill(patches, row=row), empty)


def _replace_oldest(patches: jax.Array, image: jax.Array, row: jax.Array, height: int, width: int) -> jax.Array:
    """Return the matrix P with a row of pixels in its place; the barrier keeps XLA from writing it twice."""
    pixels = lax.dynamic_index_in_dim(image, row, keepdims=False)
    inputs, columns = len(pixels), image.shape[2] - width + 1
    first = lax.rem(row, height) * (width * inputs)
    for place in range(width):
        part = pixels[:, place : place + columns].reshape(inputs, -1)
        patches = lax.dynamic_update_slice(patches, part, (first + place * inputs, 0))
    return lax.optimization_barrier(patches)


_LANES = 8  # outputs that a product makes at once
