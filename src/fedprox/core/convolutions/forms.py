"""Which form of a convolution is fast on a CPU: one of oneDNN, of products of small matrices, or of XLA's library.

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

from fedprox.core.convolutions import lanes, onednn, weight_derivatives, xla
from fedprox.core.convolutions.geometry import SMALL_WINDOW, as_given, in_order, is_single, window_pixels

__all__ = ["fast_form"]


def fast_form(equation: Any) -> Callable[..., jax.Array] | None:
    """Return a function that computes a convolution fast from its operands and parameters; None leaves it as it is."""
    if (form := _by_lanes(equation)) is not None:
        return form
    if _suits_onednn(equation) and onednn.is_available():
        return _by_onednn
    if _is_by_few_weights(equation):
        return _by_rows
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


def _is_by_few_weights(equation: Any) -> bool:
    """Return whether it is a derivative by the weights between few channels, but more than images have."""
    params, (left, right) = equation.params, (each.aval for each in equation.invars)
    images, (outputs, *_), _ = params["dimension_numbers"]
    return (
        is_single(params)
        and left.dtype == right.dtype == equation.outvars[0].aval.dtype == jnp.float32
        and window_pixels(right.shape, params) >= SMALL_WINDOW
        and math.prod(equation.outvars[0].aval.shape[axis] for axis in params["dimension_numbers"][2][2:]) < _PIXELS
        and _COLOURS < left.shape[images[0]] <= _CHANNELS
        and right.shape[outputs] <= _CHANNELS
    )


def _by_rows(left: jax.Array, right: jax.Array, *, dimension_numbers: Any, padding: Any, **_: Any) -> jax.Array:
    images, changes, outputs = dimension_numbers
    (channels, examples, *space), (others, also, *window) = images, changes
    out = weight_derivatives.by_rows(
        lax.transpose(left, [examples, *space, channels]), lax.transpose(right, [also, *window, others]), padding
    )
    return lax.transpose(out, [(outputs[2], outputs[3], outputs[0], outputs[1]).index(axis) for axis in range(4)])


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


_COLOURS, _CHANNELS = 4, 16
_PIXELS = 50  # of the window whose weights a derivative is taken by
_EXAMPLES_LAST = (3, 1, 0, 2)  # the axes of examples, channels and space
_LANES = 16  # examples that fill vector registers
