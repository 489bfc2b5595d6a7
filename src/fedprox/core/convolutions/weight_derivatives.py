"""The derivative of a convolution by its weights, as a sum of outer products.

    out[r, d, c, o] = sum over n, y, x of image[n, y s + r, x s + d, c] change[n, y, x, o]      (the window moves by s)

Each pixel adds the outer product of its inputs and the change of its outputs. As a convolution whose window is the
whole change, or as a product of two matrices, this takes copies of the image that a few channels do not pay for. Here
nothing is copied but rows that need zeros at their ends: a single kernel reads both arrays in place, and adds the
products of a few neighbouring pixels at once. Their changes stay in vector registers while every input is multiplied
with all of them.

The outputs of one pixel fill few registers. Where the window moves by single pixels, the changes under it stand side by
side in memory, (d, o), so that one input is multiplied with all columns of the window at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.kernels import one_kernel

__all__ = ["Window", "derivative_by_weights", "is_fast"]


class Window(NamedTuple):
    """How the window of a convolution moves over images."""

    rows: int
    columns: int
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]  # zeros before and after the image, down and across; may be < 0


def is_fast(image: tuple[int, ...], change: tuple[int, ...], window: Window) -> bool:
    """Return whether the sum of outer products is faster than XLA's convolution, for these shapes.

    Not for grey images, whose outer products are single rows, not where the sums do not stay in the cache, and not for
    windows that lie beyond the image at first. And LLVM unrolls short loops before it could use vector registers: the
    changes that are taken at once must be numbers enough.
    """
    (inputs, outputs), (top, _), (left, right) = (image[3], change[3]), *window.padding
    if inputs == 1 or outputs % _HALF or window.rows * window.columns * inputs * outputs > _MOST:
        return False
    if top >= window.rows or left >= window.columns:
        return False
    if _spans_columns(change, window):
        return True
    return inputs >= _HALF and outputs % _LANES == 0 and (change[2] - max(left, right, 0)) * outputs >= _LEAST


def derivative_by_weights(image: jax.Array, change: jax.Array, window: Window) -> jax.Array:
    """Return the derivative (rows, columns, inputs, outputs).

    Args:
      image: (examples, height, width, inputs).
      change: of the convolution's result, (examples, height, width, outputs).
      window: of the convolution.
    """
    (inputs, outputs), rows = (image.shape[3], change.shape[3]), (len(image), image.shape[1], -1)
    flat = image.reshape(rows), change.reshape(len(change), change.shape[1], -1)
    if _spans_columns(change.shape, window):
        totals = one_kernel(partial(_add_up_rows, window=window, inputs=inputs, outputs=outputs))(*flat)
        totals = totals[: window.rows].reshape(window.rows, inputs, window.columns, outputs)
        return totals[:, :, ::-1].transpose(0, 2, 1, 3)
    columns = one_kernel(partial(_add_up_pixels, window=window, inputs=inputs, outputs=outputs))(*flat)
    return jnp.stack(columns, axis=1)[: window.rows]


def _add_up_rows(image: jax.Array, change: jax.Array, window: Window, inputs: int, outputs: int) -> jax.Array:
    """Return (row, input, columns and outputs) for a window that moves by single pixels.

    The changes of a row of pixels are given zeros at both ends. Then those that have a pixel of the image under the
    window stand side by side: for its column d, the change at x - d + left. So d runs backwards.
    """
    (examples, height, _), rows, width = image.shape, change.shape[1], image.shape[2] // inputs
    (top, _), (left, _) = window.padding
    lanes = window.columns * outputs

    def add_example(example: jax.Array, state: State) -> State:
        def add_row(row: jax.Array, state: State) -> State:
            own = lax.dynamic_slice(change, (example, row, 0), (1, 1, change.shape[2])).reshape(-1)
            changes = lax.dynamic_update_slice(state[0], own, ((window.columns - 1 - left) * outputs,))

            def add_window_row(r: jax.Array, totals: jax.Array) -> jax.Array:
                def factors(first: jax.Array, count: int) -> Factors:
                    pixels = lax.dynamic_slice(image, (example, row + r - top, first * inputs), (1, 1, count * inputs))
                    under = lax.dynamic_slice(changes, (first * outputs,), ((count - 1) * outputs + lanes,))
                    return _stretches(pixels, inputs, inputs), _stretches(under, lanes, outputs)

                return _add_pixels(totals, r, (0, width), factors)

            return changes, lax.fori_loop(*_window_rows(window, height, row), add_window_row, state[1])

        return lax.fori_loop(0, rows, add_row, state)

    changes = jnp.zeros((width - 1) * outputs + lanes, change.dtype)
    totals = _zeros((window.rows, inputs, lanes), change)
    return lax.fori_loop(0, examples, add_example, (changes, totals))[1]


def _add_up_pixels(image: jax.Array, change: jax.Array, window: Window, inputs: int, outputs: int) -> list[jax.Array]:
    """Return (row, input, output) for each column of any window."""
    (examples, height, _), rows = image.shape, change.shape[1]
    width, columns = image.shape[2] // inputs, change.shape[2] // outputs
    (top, _), (left, _), (down, across) = *window.padding, window.strides

    def add_example(example: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
        def add_row(row: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
            def add_window_row(r: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
                def factors(d: int, first: jax.Array, count: int) -> Factors:
                    begin = (example, row * down + r - top, (first * across + d - left) * inputs)
                    pixels = lax.dynamic_slice(image, begin, (1, 1, ((count - 1) * across + 1) * inputs))
                    own = lax.dynamic_slice(change, (example, row, first * outputs), (1, 1, count * outputs))
                    return _stretches(pixels, inputs, across * inputs), _stretches(own, outputs, outputs)

                return [
                    _add_pixels(total, r, _inside(width, columns, across, d - left), partial(factors, d))
                    for d, total in enumerate(totals)
                ]

            return lax.fori_loop(*_window_rows(window, height, row), add_window_row, totals)

        return lax.fori_loop(0, rows, add_row, totals)

    start = [_zeros((window.rows, inputs, outputs), change)] * window.columns
    return lax.fori_loop(0, examples, add_example, start)


def _add_pixels(
    totals: jax.Array, place: jax.Array, pixels: tuple[int, int], factors: Callable[[jax.Array, int], Factors]
) -> jax.Array:
    """Return totals with the outer products of some pixels of a row added in one place.

    `factors(first, count)` are those of neighbouring pixels. The sum is written in place, as part of a larger array:
    XLA divides an array that is made anew among threads, which the code of a single kernel cannot do.
    """
    _, inputs, lanes = totals.shape
    most = next(most for up_to, most in _PIXELS if lanes <= up_to)
    for begin, count, times in _parts(*pixels, most):

        def add(number: jax.Array, totals: jax.Array, begin: int = begin, count: int = count) -> jax.Array:
            pairs = zip(*factors(begin + number * count, count), strict=True)
            added = reduce(jnp.add, (pixel[:, None] * changes for pixel, changes in pairs))
            total = lax.dynamic_slice(totals, (place, 0, 0), (1, inputs, lanes)) + added
            return lax.dynamic_update_slice(totals, total, (place, 0, 0))

        totals = lax.fori_loop(0, times, add, totals)
    return totals


def _spans_columns(change: tuple[int, ...], window: Window) -> bool:
    """Return whether the changes under all columns of the window are taken at once: they are few, and neighbours."""
    return (
        window.strides == (1, 1)
        and window.columns > 1
        and window.columns * change[3] < _MANY
        and all(0 <= pad < window.columns for pad in window.padding[1])
    )


def _inside(size: int, count: int, step: int, shift: int) -> tuple[int, int]:
    """Return which of `count` changes, from one to before another, have their pixel, at step * i + shift, inside.

    >>> _inside(8, 4, 2, -1), _inside(8, 4, 2, 1)
    ((1, 4), (0, 4))
    """
    begin = max(0, -(shift // step))
    return begin, max(begin, min(count, (size - 1 - shift) // step + 1))


def _window_rows(window: Window, height: int, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return which rows of the window, from one to before another, lie inside the image for a row of changes."""
    above = window.padding[0][0] - row * window.strides[0]
    return jnp.maximum(above, 0), jnp.minimum(above + height, window.rows)


def _parts(begin: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Divide pixels as equally as possible: begin, number of pixels, and how often that many follow each other.

    >>> list(_parts(1, 32, 8))
    [(1, 7, 1), (8, 8, 3)]
    """
    times = -(-(end - begin) // most)
    count, longer = divmod(end - begin, times) if times else (0, 0)
    for first, each, often in ((begin, count, times - longer), (end - (count + 1) * longer, count + 1, longer)):
        if often:
            yield first, each, often


def _stretches(array: jax.Array, length: int, step: int) -> list[jax.Array]:
    """Return the stretches of a flat array, each `step` numbers after the one before."""
    flat = array.reshape(-1)
    return [flat[begin : begin + length] for begin in range(0, len(flat) - length + 1, step)]


def _zeros(shape: tuple[int, int, int], like: jax.Array) -> jax.Array:
    """Return zeros in at least two places, so that each is a part of a larger array."""
    return jnp.zeros((max(shape[0], 2), *shape[1:]), like.dtype)


State = tuple[jax.Array, jax.Array]  # a row of changes with zeros at both ends, and the sums so far
Factors = tuple[list[jax.Array], list[jax.Array]]  # the inputs and the changes of some pixels

_LANES, _HALF = 16, 8  # numbers in the largest vector registers, and half of them
_LEAST = 80  # changes that are taken at once
_MANY = 384  # changes under the window that fill enough registers without their neighbours
_MOST = 1 << 20  # numbers in the derivative
_PIXELS = ((16, 12), (80, 8), (128, 6), (1 << 31, 4))  # (changes of a pixel at most, pixels taken at once)
