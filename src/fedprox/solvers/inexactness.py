"""gamma-inexactness: how well a device has solved its subproblem (Definitions 1 and 2).

    gamma_k^t = ||grad h_k(w_k; w^t)|| / ||grad h_k(w^t; w^t)||

exact over the device's samples. gamma = 0 is an exact solution, gamma = 1 no progress. Where the gradient at w^t is
already zero, w^t is a solution: gamma is 0 if the device stayed there, and infinite if it left. For a method whose
devices start elsewhere, their starting point takes the place of w^t; h_k has the device's own anchor and mu.

The cost is two gradients over the device's samples, one if the gradient at the start is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.core.compilation import compiled
from fedprox.core.trees import Tree, squared_norm, to_numpy
from fedprox.models import Model
from fedprox.solvers.host_gradient import host_gradient
from fedprox.solvers.subproblem import Subproblem, add_terms, device_gradient

__all__ = ["gradient_norm_program", "inexactness"]


def inexactness(norm: float, norm_at_start: float) -> float:
    """Return gamma from ||grad h_k(w_k)|| and ||grad h_k|| at the starting point, which is w^t by default.

    >>> inexactness(1.0, 4.0), inexactness(0.0, 0.0), inexactness(1.0, 0.0)
    (0.25, 0.0, inf)
    """
    if norm_at_start > 0:
        return norm / norm_at_start
    return math.nan if math.isnan(norm_at_start) else (0.0 if norm == 0 else math.inf)


@lru_cache(maxsize=32)
def gradient_norm_program(model: Model, block: int) -> Callable[..., Any]:
    """Return the compiled `program(params, problem, x, y, span) -> ||grad h_k(params)||`; span = (begin, count)."""
    host = model.host
    if host is not None:

        def on_host(params: Tree, problem: Subproblem, x: Any, y: Any, span: Any) -> float:
            own = host_gradient(host, params, x, y, span)
            return math.sqrt(squared_norm(add_terms(to_numpy(problem), to_numpy(params), own)))

        return on_host

    def program(params: Tree, problem: Subproblem, x: jax.Array, y: jax.Array, span: jax.Array) -> jax.Array:
        gradient = add_terms(problem, params, device_gradient(model, params, x, y, span[0], span[1], block))
        return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)))

    return compiled(program, small=model.small)
