"""Convolutions in the forms that XLA's own library runs fast.

XLA's CPU compiler hands a convolution to its fast library only where the axes are in one order: examples, space,
channels (and space, inputs, outputs for the weights). In a program's entry computation it transposes the others
itself, in the body of a loop it does not; the derivatives of a convolution are not in that order and take twenty times
as long there. So they become transpose, convolution, transpose.

A convolution of few outputs, as the first of most networks is, computes neighbouring pixels as further outputs, or the
same pixel of all examples at once where each output takes many operations. The derivative by the weights is summed over
a few examples at a time.
"""

from __future__ import annotations

import itertools
import math
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.convolutions.geometry import (
    SMALL_WINDOW,
    as_given,
    in_order,
    is_single,
    library_axes,
    window_pixels,
)

__all__ = ["convolve", "is_slow"]


def is_slow(equation: Any) -> bool:
    """Return whether XLA computes a convolution faster in another form than the given one."""
    images, weights = (each.aval for each in equation.invars)
    return (
        tuple(equation.params["dimension_numbers"]) != library_axes(images.ndim)
        or _tile(images.shape, weights.shape, equation.params) is not None
        or _is_deep(weights.shape, equation.params)
    )


def convolve(left: jax.Array, right: jax.Array, *, dimension_numbers: Any, **params: Any) -> jax.Array:
    """Return a convolution, with the operands and parameters of JAX's operation."""
    given_params = {**params, "dimension_numbers": dimension_numbers}
    tile, is_deep = _tile(left.shape, right.shape, given_params), _is_deep(right.shape, given_params)
    left, right = in_order(left, right, dimension_numbers)
    params["padding"] = list(params["padding"])
    form = lax.ConvDimensionNumbers(*library_axes(left.ndim))
    plain = partial(lax.conv_general_dilated, dimension_numbers=form)
    if is_deep:
        out = _examples_side_by_side(plain, left, right, params)
    elif tile is not None:
        out = _tiled(plain, left, right, tile, params)
    elif params["feature_group_count"] == params["batch_group_count"] == 1:
        parts = (
            (lax.slice_in_dim(left, begin, end, axis=-1), lax.slice_in_dim(right, begin, end, axis=-2))
            for begin, end in _parts(left.shape, right.shape)
        )
        out = reduce(jnp.add, (plain(*part, **params) for part in parts))
    else:
        out = plain(left, right, **params)
    return as_given(out, dimension_numbers)


def _tile(left: tuple[int, ...], right: tuple[int, ...], params: Any) -> tuple[int, int] | None:
    """Return how many pixels, down and across, a convolution computes as outputs of one; None leaves it as it is.

    The library's kernel makes 32 outputs at once, also where fewer are asked for. With a tile of s x t pixels the
    weights are a window of (height + s - 1) x (width + t - 1) with s t times the outputs, each of them shifted, and the
    window moves by whole tiles. The tile with the least work is taken, if it saves enough to pay for the copies.
    """
    (_, _, *space), (outputs, inputs, *window), _ = params["dimension_numbers"]
    if not _is_plain(right, params) or right[outputs] >= _OUTPUTS:
        return None
    reach = [right[axis] for axis in window]
    sizes = [left[a] + sum(pad) - size + 1 for a, pad, size in zip(space, params["padding"], reach, strict=True)]

    def work(tile: tuple[int, int]) -> int:
        each = (-(-size // step) * (near + step - 1) for size, near, step in zip(sizes, reach, tile, strict=True))
        return math.prod(each) * max(_OUTPUTS, math.prod(tile) * right[outputs])

    best = min(((down, across) for down in range(1, 7) for across in range(1, 7)), key=work)
    is_first = right[inputs] <= _FEW
    if work(best) <= (_WORTH_FIRST if is_first else _WORTH) * work((1, 1)):
        return best
    return (1, 1) if is_first else None


def _is_deep(right: tuple[int, ...], params: Any) -> bool:
    """Return whether a convolution of images has few outputs, each of which takes many operations."""
    outputs, inputs, *window = params["dimension_numbers"][1]
    return (
        _is_plain(right, params)
        and right[outputs] < _OUTPUTS
        and right[outputs] % 8 == 0
        and right[outputs] >= _OUTPUTS // 2
        and right[inputs] >= _OUTPUTS
        and math.prod(right[axis] for axis in window) * right[inputs] >= _MANY
    )


def _is_plain(right: tuple[int, ...], params: Any) -> bool:
    """Return whether a convolution of images has a small window that moves by single pixels."""
    return is_single(params) and window_pixels(right, params) < SMALL_WINDOW


def _examples_side_by_side(plain: Any, left: jax.Array, right: jax.Array, params: Any) -> jax.Array:
    """Return the convolution of one wide image, in which a pixel of all examples stands where that of one stood.

    The window's columns are then as far apart as there are examples. The library takes a row of an image at once, and
    fills its registers from a long one also where there are few outputs.
    """
    examples, height, width, inputs = left.shape
    rows, columns = params["padding"]
    wide = left.transpose(1, 2, 0, 3).reshape(1, height, width * examples, inputs)
    padding = [rows, tuple(each * examples for each in columns)]
    out = plain(wide, right, **{**params, "padding": padding, "rhs_dilation": (1, examples)})
    return out.reshape(out.shape[1], -1, examples, out.shape[-1]).transpose(2, 0, 1, 3)


def _tiled(plain: Any, left: jax.Array, right: jax.Array, tile: tuple[int, int], params: Any) -> jax.Array:
    """Return the convolution with the pixels of a tile as further outputs."""
    outputs, count = right.shape[-1], math.prod(tile)
    sizes = [
        size + sum(pad) - reach + 1
        for size, pad, reach in zip(left.shape[1:3], params["padding"], right.shape[:2], strict=True)
    ]
    tiles = [-(-size // step) for size, step in zip(sizes, tile, strict=True)]
    shifted = [
        jnp.pad(right, [*((at, step - 1 - at) for at, step in zip(place, tile, strict=True)), (0, 0), (0, 0)])
        for place in itertools.product(*map(range, tile))
    ]
    weights = jnp.concatenate(shifted, axis=-1)
    weights = jnp.pad(weights, [(0, 0)] * 3 + [(0, max(_OUTPUTS - count * outputs, 0))])
    padding = [
        (before, after + number * step - size)
        for (before, after), number, step, size in zip(params["padding"], tiles, tile, sizes, strict=True)
    ]
    out = plain(left, weights, **{**params, "padding": padding, "window_strides": tile})[..., : count * outputs]
    out = out.reshape(len(left), *tiles, *tile, outputs).transpose(0, 1, 3, 2, 4, 5)
    return out.reshape(len(left), tiles[0] * tile[0], tiles[1] * tile[1], outputs)[:, : sizes[0], : sizes[1]]


def _parts(left: tuple[int, ...], right: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the inputs that are summed over at once.

    In the derivative by the weights these are the examples, and the window is nearly as large as an image: the whole
    batch does not stay in the cache, except in a first layer with few outputs.
    """
    *window, inputs, outputs = right
    part = 4 * _EXAMPLES if left[0] <= _FEW and outputs <= _OUTPUTS // 2 else _EXAMPLES
    if inputs < 2 * part or math.prod(window) < _IMAGE:
        return [(0, inputs)]
    return [(begin, min(begin + part, inputs)) for begin in range(0, inputs, part)]


_OUTPUTS = 32  # that the library's kernel computes at once
_FEW = 8  # inputs of a first layer
_EXAMPLES, _IMAGE = 8, 50
_MANY = 512  # multiplications for one output
_WORTH, _WORTH_FIRST = 0.62, 0.7  # of the work of single pixels, that a tile may take
