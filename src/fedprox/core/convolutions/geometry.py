"""The axes and the window of a convolution, as JAX's operation `conv_general_dilated` describes them.

Its `dimension_numbers` are three tuples of axes: (examples, channels, *space) of the images, (outputs, inputs, *space)
of the weights, and (examples, channels, *space) of the result.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax

__all__ = ["SMALL_WINDOW", "as_given", "in_order", "is_single", "library_axes", "window_pixels"]

SMALL_WINDOW = 100  # pixels; the window of a derivative by the weights has more, nearly those of an image


def library_axes(dimensions: int) -> tuple[tuple[int, ...], ...]:
    """Return the dimension numbers that libraries take: examples, space, channels, and space, inputs, outputs.

    >>> library_axes(4)
    ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    last, space = dimensions - 1, range(1, dimensions - 1)
    return (0, last, *space), (last, last - 1, *(axis - 1 for axis in space)), (0, last, *space)


def in_order(images: jax.Array, weights: jax.Array, given: Any) -> list[jax.Array]:
    """Return images and weights, whose dimension numbers are given, with the axes that libraries take."""
    return [
        lax.transpose(array, [axes[form.index(axis)] for axis in range(array.ndim)])
        for array, axes, form in zip((images, weights), given, library_axes(images.ndim), strict=False)
    ]


def as_given(result: jax.Array, given: Any) -> jax.Array:
    """Return the result of a library with the axes of the given dimension numbers."""
    form = library_axes(result.ndim)[2]
    return lax.transpose(result, [form[given[2].index(axis)] for axis in range(result.ndim)])


def is_single(params: Any) -> bool:
    """Return whether a convolution of images moves by single pixels and is not divided into groups."""
    return (
        len(params["window_strides"]) == 2
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and all(step == 1 for name in ("window_strides", "lhs_dilation", "rhs_dilation") for step in params[name])
    )


def window_pixels(weights: tuple[int, ...], params: Any) -> int:
    """Return the number of pixels of the window, for the shape of the weights."""
    _, _, *window = params["dimension_numbers"][1]
    return math.prod(weights[axis] for axis in window)
