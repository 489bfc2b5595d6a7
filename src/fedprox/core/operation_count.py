"""How much arithmetic a function of arrays takes: the multiplications and additions of its products and convolutions.

It is counted from the function's operations, so it is known for any model before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

__all__ = ["count_operations"]


def count_operations(function: Callable[..., Any], *shapes: Any) -> int:
    """Return the operations of the products and convolutions of a function of arrays of these shapes.

    A loop whose length is not known counts once, and a choice as its most costly branch.

    >>> import jax.numpy as jnp
    >>> count_operations(lambda a, b: a @ b, jnp.zeros((2, 3)), jnp.zeros((3, 4)))  # 2 * (2 * 3 * 4)
    48
    """
    return _count(jax.make_jaxpr(function)(*shapes).jaxpr)


def _count(jaxpr: Any) -> int:
    return sum(_count_in(equation) for equation in jaxpr.eqns)


def _count_in(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        ((contracted, _), _), left = params["dimension_numbers"], equation.invars[0].aval.shape
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
    if name == "conv_general_dilated":
        weights, outputs = equation.invars[1].aval.shape, params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(weights) // max(weights[outputs], 1)
    if name == "cond":
        return max(_count(branch.jaxpr) for branch in params["branches"])
    times = params["length"] if name == "scan" else 1
    return times * sum(
        _count(each.jaxpr if isinstance(each, ClosedJaxpr) else each)
        for each in params.values()
        if isinstance(each, (ClosedJaxpr, Jaxpr))
    )
