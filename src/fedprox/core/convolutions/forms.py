"""Which form of a convolution is fast on a CPU: products of small matrices, outer products, oneDNN's or XLA's library.

What the forms compute is the same, up to rounding; the choice depends on the shapes alone. It follows from measurements
(`docs/decisions/0009-convolutions-in-loops.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.convolutions import lanes, onednn, xla
from fedprox.core.convolutions.geometry import SMALL_WINDOW, as_given, in_order, is_single, window_pixels
from fedprox.core.convolutions.weight_derivatives import Window, derivative_by_weights, is_fast

__all__ = ["fast_form"]


def fast_form(equation: Any) -> Callable[..., jax.Array] | None:
    """Return a function that computes a convolution fast from its operands and parameters; None leaves it as it is."""
    if (form := _by_lanes(equation)) is not None:
        return form
    if (form := _by_outer_products(equation)) is not None:
        return form
    if _suits_onednn(equation) and onednn.is_available():
        return _by_onednn
    return xla.convolve if xla.is_slow(equation) else None


def _suits_onednn(equation: Any) -> bool:
    """Return whether it is a convolution of images with a small window, and not one of grey images.

    Those have too few products for each pixel; tiles of XLA's library take two thirds of the time.
    """
    params, (left, right) = equation.params, (each.aval for each in equation.invars)
    outputs, inputs, *_ = params["dimension_numbers"][1]
    is_grey = right.shape[inputs] == 1 and right.shape[outputs] % 8 == 0 and is_single(params)
    return (
        len(params["window_strides"]) == 2
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and all(step == 1 for step in params["lhs_dilation"])
        and all(pad >= 0 for sides in params["padding"] for pad in sides)
        and left.dtype == right.dtype == equation.outvars[0].aval.dtype == jnp.float32
        and window_pixels(right.shape, params) < SMALL_WINDOW
        and 0 not in (*left.shape, *right.shape)
        and not is_grey
    )


def _by_onednn(
    left: jax.Array,
    right: jax.Array,
    *,
    dimension_numbers: Any,
    window_strides: Any,
    padding: Any,
    rhs_dilation: Any,
    **_: Any,
) -> jax.Array:
    left, right = in_order(left, right, dimension_numbers)
    out = onednn.convolve(left, right, window_strides, padding, rhs_dilation)
    return as_given(out, dimension_numbers)


def _by_outer_products(equation: Any) -> Callable[..., jax.Array] | None:
    """Return a function that computes a derivative by the weights as a sum of outer products, or None.

    As a convolution it takes the inputs for examples and the examples for inputs, its window is the change, and the
    pixels of that are as far apart as the window of the given convolution moves.
    """
    params, (left, right) = equation.params, (each.aval for each in equation.invars)
    (inputs, examples, *space), (outputs, also, *under), (given, made, *window) = params["dimension_numbers"]
    image_axes, change_axes = (examples, *space, inputs), (also, *under, outputs)
    shape = equation.outvars[0].aval.shape
    if (
        not is_single({**params, "rhs_dilation": (1, 1)})
        or not left.dtype == right.dtype == equation.outvars[0].aval.dtype == jnp.float32
        or window_pixels(right.shape, params) < max(_WINDOW, math.prod(shape[axis] for axis in window) + 1)
        or 0 in (*left.shape, *right.shape)
    ):
        return None
    (rows, columns), (above, beside) = (shape[axis] for axis in window), params["padding"]
    moved = Window(rows, columns, tuple(params["rhs_dilation"]), (tuple(above), tuple(beside)))
    if not is_fast(_shape(left, image_axes), _shape(right, change_axes), moved):
        return None

    def form(left: jax.Array, right: jax.Array, **_: Any) -> jax.Array:
        out = derivative_by_weights(lax.transpose(left, image_axes), lax.transpose(right, change_axes), moved)
        return lax.transpose(out, [(*window, given, made).index(axis) for axis in range(4)])

    return form


def _shape(array: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(array.shape[axis] for axis in axes)


def _by_lanes(equation: Any) -> Callable[..., jax.Array] | None:
    """Return a function that computes a convolution in the order height, channels, width, examples, or None."""
    params, (left, right) = equation.params, (each.aval for each in equation.invars)
    images, weights, outputs = map(tuple, params["dimension_numbers"])
    if not is_single(params) or left.dtype != right.dtype or left.dtype != equation.outvars[0].aval.dtype:
        return None
    is_small = window_pixels(right.shape, params) < SMALL_WINDOW
    if images == outputs == _EXAMPLES_LAST and left.shape[-1] >= _LANES and is_small:
        return _examples_last
    if images == weights == (1, 3, 0, 2) and left.shape[-1] >= _LANES:
        return _weights_of_examples_last
    return None


def _examples_last(left: jax.Array, right: jax.Array, *, dimension_numbers: Any, padding: Any, **_: Any) -> jax.Array:
    outputs, inputs, *window = dimension_numbers[1]
    weights = lax.transpose(right, [*window, inputs, outputs])
    is_larger = sum(map(sum, padding)) > sum(weights.shape[:2]) - 2  # than the image
    return (lanes.spread if is_larger else lanes.convolve)(left, weights, padding)


def _weights_of_examples_last(
    left: jax.Array, right: jax.Array, *, dimension_numbers: Any, padding: Any, **_: Any
) -> jax.Array:
    out = lanes.derivative_by_weights(left, right, padding)
    inputs, outputs, *window = dimension_numbers[2]
    return lax.transpose(out, [(*window, inputs, outputs).index(axis) for axis in range(out.ndim)])


_WINDOW = 36  # pixels; that of a derivative by the weights has nearly those of an image
_EXAMPLES_LAST = (3, 1, 0, 2)  # the axes of examples, channels and space
_LANES = 16  # examples that fill vector registers
