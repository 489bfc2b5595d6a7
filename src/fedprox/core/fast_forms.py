"""Convolutions and pooling of any model, brought into the forms that XLA runs fast on a CPU, also within loops.

Within a loop XLA's CPU compiler has fast code for few forms of a convolution, and nowhere any for the derivative of a
maximum over windows. So before a program is compiled, its operations are searched (in calls, loops and branches too):
such convolutions are replaced by the forms of `fedprox.core.convolutions`, such derivatives by comparisons. What the
program computes stays the same, up to rounding. A program without any of them is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from fedprox.core import convolutions
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
    known = [_as_result(each, arguments) for each in consts]
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*known, *arguments), strict=True))

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


def _as_result(array: Any, arguments: Sequence[Any]) -> Any:
    """Return an array that is part of a program as the result of an operation on one of the program's arguments.

    XLA aborts the process where a single kernel, as derivatives of convolutions are, is given a constant.
    """
    given = [each for each in arguments if np.size(each) and jnp.issubdtype(jnp.result_type(each), jnp.number)]
    if not given or not jnp.issubdtype(jnp.result_type(array), jnp.number):
        return array
    is_more = (jnp.ravel(given[0])[0] != 0).astype(jnp.int32) > 1  # never, but XLA does not know
    return jnp.where(is_more, jnp.zeros_like(array), array)


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
    if name == "conv_general_dilated":
        return convolutions.fast_form(equation)
    if (
        name == "select_and_scatter_add"
        and params["select_prim"] is lax.ge_p
        and tuple(params["window_strides"]) == tuple(params["window_dimensions"])
        and not any(map(any, params["padding"]))
    ):
        return max_pooling_derivative
    return None


_WITH_RULES = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}  # for derivatives, which come before this
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
