"""Convolutions and pooling of any model, brought into the forms that XLA runs fast on a CPU, also within loops.

XLA's CPU compiler hands a convolution to its fast library only where the axes are in one order: examples, space,
channels (and space, inputs, outputs for the weights). In a program's entry computation it transposes the others
itself, in the body of a loop it does not; the derivatives of a convolution are not in that order and take twenty times
as long there. And it has no fast code for the derivative of a maximum over windows.

So before a program is compiled, its operations are searched (in calls, loops and branches too): such convolutions are
rewritten as transpose, convolution, transpose, such derivatives as comparisons. A convolution of few outputs, as the
first of most networks is, computes neighbouring pixels as further outputs, or the same pixel of all examples at once
where each output takes many operations. The derivative by the weights is summed over a few examples at a time, or row
by row where there are few channels (`fedprox.core.weight_derivatives`). Where XLA can call oneDNN, convolutions with
small windows are left to it (`fedprox.core.onednn`). What the program computes stays the same, up to rounding. A
program without any of them is left as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from fedprox.core import lane_convolutions, onednn, weight_derivatives
from fedprox.core.pooling import max_pooling_derivative

__all__ = ["in_fast_forms"]


def in_fast_forms(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its convolutions and derivatives of pooling in their fast forms.

    It is meant for a function that is to be compiled, not differentiated: rules for derivatives are lost.
    """

    def rewritten(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _has_slow_forms(closed.jaxpr):
            return function(*arguments)
        outputs = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), outputs)

    return rewritten


def _has_slow_forms(jaxpr: Any) -> bool:
    return any(
        _fast_form(equation) is not None or any(_has_slow_forms(each.jaxpr) for each in _inner(equation))
        for equation in jaxpr.eqns
    )


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Return what a program computes, with each slow form replaced."""
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        with equation.ctx.manager:
            outputs = _apply(equation, inputs)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any]) -> list[Any]:
    params, name = equation.params, equation.primitive.name
    if (form := _fast_form(equation)) is not None:
        return [form(*inputs, **params)]
    inner = _inner(equation)
    is_slow = any(_has_slow_forms(each.jaxpr) for each in inner)
    if name in _WITH_RULES or (is_slow and name in _CALLS):
        return _evaluate(inner[0].jaxpr, inner[0].consts, inputs)
    if is_slow:
        params = {name: _with_fast_forms(value) for name, value in params.items()}
    outputs = equation.primitive.bind(*inputs, **params)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _inner(equation: Any) -> list[ClosedJaxpr]:
    """Return the programs within an operation."""
    found = []
    for value in equation.params.values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, ClosedJaxpr):
                found.append(each)
            elif isinstance(each, Jaxpr):
                found.append(ClosedJaxpr(each, ()))
    return found


def _with_fast_forms(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_with_fast_forms(each) for each in value)
    if not isinstance(value, ClosedJaxpr) or not _has_slow_forms(value.jaxpr):
        return value
    return jax.make_jaxpr(lambda *arguments: _evaluate(value.jaxpr, value.consts, arguments))(*value.in_avals)


def _fast_form(equation: Any) -> Callable[..., jax.Array] | None:
    """Return a faster way to compute an operation that XLA computes slowly, or None."""
    params, name = equation.params, equation.primitive.name
    if name == "conv_general_dilated" and (form := _lane_form(equation)) is not None:
        return form
    if name == "conv_general_dilated" and _suits_onednn(equation) and onednn.is_available():
        return _by_onednn
    if name == "conv_general_dilated" and _is_by_few_weights(equation):
        return _by_rows
    if name == "conv_general_dilated" and (
        tuple(params["dimension_numbers"]) != _axes(equation.invars[0].aval.ndim)
        or _tile(equation.invars[0].aval.shape, equation.invars[1].aval.shape, params) is not None
        or _is_deep(equation.invars[1].aval.shape, params)
    ):
        return _convolution
    if (
        name == "select_and_scatter_add"
        and params["select_prim"] is lax.ge_p
        and tuple(params["window_strides"]) == tuple(params["window_dimensions"])
        and not any(map(any, params["padding"]))
    ):
        return max_pooling_derivative
    return None


def _suits_onednn(equation: Any) -> bool:
    """Return whether it is a convolution of images with a small window; derivatives by weights have a large one."""
    params, (left, right) = equation.params, (each.aval for each in equation.invars)
    return (
        len(params["window_strides"]) == 2
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and all(step == 1 for step in params["lhs_dilation"])
        and all(pad >= 0 for sides in params["padding"] for pad in sides)
        and left.dtype == right.dtype == equation.outvars[0].aval.dtype == jnp.float32
        and _window(right.shape, params) < _WINDOW
        and 0 not in (*left.shape, *right.shape)
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
    left, right = _in_order(left, right, dimension_numbers)
    out = onednn.convolve(left, right, window_strides, padding, rhs_dilation)
    return _as_given(out, dimension_numbers)


def _is_by_few_weights(equation: Any) -> bool:
    """Return whether it is a derivative by the weights between few channels, but more than images have."""
    params, (left, right) = equation.params, (each.aval for each in equation.invars)
    images, (outputs, *_), _ = params["dimension_numbers"]
    return (
        _is_single(params)
        and left.dtype == right.dtype == equation.outvars[0].aval.dtype == jnp.float32
        and _window(right.shape, params) >= _WINDOW
        and math.prod(equation.outvars[0].aval.shape[axis] for axis in params["dimension_numbers"][2][2:]) < _IMAGE
        and _COLOURS < left.shape[images[0]] <= _OUTPUTS // 2
        and right.shape[outputs] <= _OUTPUTS // 2
    )


def _by_rows(left: jax.Array, right: jax.Array, *, dimension_numbers: Any, padding: Any, **_: Any) -> jax.Array:
    images, changes, outputs = dimension_numbers
    (channels, examples, *space), (others, also, *window) = images, changes
    out = weight_derivatives.by_rows(
        lax.transpose(left, [examples, *space, channels]), lax.transpose(right, [also, *window, others]), padding
    )
    return lax.transpose(out, [(outputs[2], outputs[3], outputs[0], outputs[1]).index(axis) for axis in range(4)])


def _lane_form(equation: Any) -> Callable[..., jax.Array] | None:
    """Return a function that computes a convolution in the order height, channels, width, examples, or None."""
    params, (left, right) = equation.params, (each.aval for each in equation.invars)
    images, weights, outputs = map(tuple, params["dimension_numbers"])
    if not _is_single(params) or left.dtype != right.dtype or left.dtype != equation.outvars[0].aval.dtype:
        return None
    if images == outputs == _LAST and left.shape[-1] >= _FILLED and _window(right.shape, params) < _WINDOW:
        return _examples_last
    if images == weights == (1, 3, 0, 2) and left.shape[-1] >= _FILLED:
        return _weights_of_examples_last
    return None


def _examples_last(left: jax.Array, right: jax.Array, *, dimension_numbers: Any, padding: Any, **_: Any) -> jax.Array:
    outputs, inputs, *window = dimension_numbers[1]
    weights = lax.transpose(right, [*window, inputs, outputs])
    is_larger = sum(map(sum, padding)) > sum(weights.shape[:2]) - 2  # than the image
    return (lane_convolutions.spread if is_larger else lane_convolutions.convolve)(left, weights, padding)


def _weights_of_examples_last(
    left: jax.Array, right: jax.Array, *, dimension_numbers: Any, padding: Any, **_: Any
) -> jax.Array:
    out = lane_convolutions.derivative_by_weights(left, right, padding)
    inputs, outputs, *window = dimension_numbers[2]
    return lax.transpose(out, [(*window, inputs, outputs).index(axis) for axis in range(out.ndim)])


def _axes(dimensions: int) -> tuple[tuple[int, ...], ...]:
    """Return which axes are examples, channels and space in the form that XLA's library takes."""
    last, space = dimensions - 1, range(1, dimensions - 1)
    return (0, last, *space), (last, last - 1, *(axis - 1 for axis in space)), (0, last, *space)


def _in_order(left: jax.Array, right: jax.Array, given: Any) -> list[jax.Array]:
    """Return images and weights with their axes in the order that libraries take."""
    return [
        lax.transpose(array, [axes[form.index(axis)] for axis in range(array.ndim)])
        for array, axes, form in zip((left, right), given, _axes(left.ndim), strict=False)
    ]


def _as_given(out: jax.Array, given: Any) -> jax.Array:
    """Return the result of a library with its axes in the order that the program takes."""
    form = _axes(out.ndim)[2]
    return lax.transpose(out, [form[given[2].index(axis)] for axis in range(out.ndim)])


def _convolution(left: jax.Array, right: jax.Array, *, dimension_numbers: Any, **params: Any) -> jax.Array:
    given_params = {**params, "dimension_numbers": dimension_numbers}
    tile, is_deep = _tile(left.shape, right.shape, given_params), _is_deep(right.shape, given_params)
    left, right = _in_order(left, right, dimension_numbers)
    params["padding"] = list(params["padding"])
    form = lax.ConvDimensionNumbers(*_axes(left.ndim))
    convolve = partial(lax.conv_general_dilated, dimension_numbers=form)
    if is_deep:
        out = _examples_side_by_side(convolve, left, right, params)
    elif tile is not None:
        out = _tiled(convolve, left, right, tile, params)
    elif params["feature_group_count"] == params["batch_group_count"] == 1:
        parts = (
            (lax.slice_in_dim(left, begin, end, axis=-1), lax.slice_in_dim(right, begin, end, axis=-2))
            for begin, end in _parts(left.shape, right.shape)
        )
        out = reduce(jnp.add, (convolve(*part, **params) for part in parts))
    else:
        out = convolve(left, right, **params)
    return _as_given(out, dimension_numbers)


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
    return _is_single(params) and _window(right, params) < _WINDOW


def _is_single(params: Any) -> bool:
    """Return whether a convolution of images moves by single pixels and is not divided into groups."""
    return (
        len(params["window_strides"]) == 2
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and all(step == 1 for name in _STEPS for step in params[name])
    )


def _window(right: tuple[int, ...], params: Any) -> int:
    _, _, *window = params["dimension_numbers"][1]
    return math.prod(right[axis] for axis in window)


def _examples_side_by_side(convolve: Any, left: jax.Array, right: jax.Array, params: Any) -> jax.Array:
    """Return the convolution of one wide image, in which a pixel of all examples stands where that of one stood.

    The window's columns are then as far apart as there are examples. The library takes a row of an image at once, and
    fills its registers from a long one also where there are few outputs.
    """
    examples, height, width, inputs = left.shape
    rows, columns = params["padding"]
    wide = left.transpose(1, 2, 0, 3).reshape(1, height, width * examples, inputs)
    padding = [rows, tuple(each * examples for each in columns)]
    out = convolve(wide, right, **{**params, "padding": padding, "rhs_dilation": (1, examples)})
    return out.reshape(out.shape[1], -1, examples, out.shape[-1]).transpose(2, 0, 1, 3)


def _tiled(convolve: Any, left: jax.Array, right: jax.Array, tile: tuple[int, int], params: Any) -> jax.Array:
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
    out = convolve(left, weights, **{**params, "padding": padding, "window_strides": tile})[..., : count * outputs]
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


_OUTPUTS, _FEW, _COLOURS = 32, 8, 4
_EXAMPLES, _WINDOW, _IMAGE = 8, 100, 50
_MANY = 512  # multiplications for one output
_WORTH, _WORTH_FIRST = 0.62, 0.7  # of the work of single pixels, that a tile may take
_LAST, _FILLED = (3, 1, 0, 2), 16  # the axes of examples, channels and space; examples that fill vector registers
_STEPS = ("window_strides", "lhs_dilation", "rhs_dilation")

_WITH_RULES = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}  # for derivatives, which come before this
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
