"""The subproblem of a chosen device, and gradients of it.

    h_k(w; w^t) = F_k(w) + <c_k, w> + (mu / 2) ||w - w^t||^2          (Equation 2, with a linear term)

    grad h_k(w; w^t) = grad F_k(w) + c_k + mu (w - w^t)

FedAvg has mu = 0 and c_k = 0, FedProx c_k = 0; methods that correct the local gradient put their correction in c_k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.trees import Tree
from fedprox.models import Model, mean_gradient

__all__ = [
    "Subproblem",
    "add_terms",
    "add_terms_to_value",
    "device_curvature",
    "device_gradient",
    "device_value_and_gradient",
    "rows_in_block",
]


class Subproblem(NamedTuple):
    """What is added to a device's own loss F_k."""

    anchor: Tree  # w^t
    mu: Any
    linear: Tree = None  # c_k, or None where there is no linear term


def add_terms(problem: Subproblem, params: Tree, gradient: Tree) -> Tree:
    """Return grad h_k at `params`, given `gradient` = grad F_k there (or an estimate of it from a mini-batch)."""

    def proximal(gradient: jax.Array, param: jax.Array, anchor: jax.Array) -> jax.Array:
        return gradient + problem.mu * (param - anchor)

    total = jax.tree.map(proximal, gradient, params, problem.anchor)
    if problem.linear is None:
        return total
    return jax.tree.map(jnp.add, total, problem.linear)


def add_terms_to_value(problem: Subproblem, params: Tree, value: jax.Array) -> jax.Array:
    """Return h_k(params), given `value` = F_k(params)."""

    def proximal(param: jax.Array, anchor: jax.Array) -> jax.Array:
        return jnp.sum((param - anchor) ** 2)

    total = value + 0.5 * problem.mu * sum(jax.tree.leaves(jax.tree.map(proximal, params, problem.anchor)))
    if problem.linear is None:
        return total
    return total + sum(jax.tree.leaves(jax.tree.map(jnp.vdot, problem.linear, params)))


def device_gradient(
    model: Model, params: Tree, x: jax.Array, y: jax.Array, begin: jax.Array, count: jax.Array, block: int
) -> Tree:
    """Return grad F_k(params) over the rows begin, ..., begin + count - 1 of x and y, `block` rows at a time.

    The number of rows is not part of the compiled program's shape: small devices cost little and none is padded to
    the largest. `block` must not exceed the number of rows of x.
    """

    def add_block(i: jax.Array, total: Tree) -> Tree:
        xs, ys, inside = rows_in_block(x, y, begin + i * block, begin + count, block)
        gradient = mean_gradient(model, params, xs, ys, jnp.where(inside, 1.0 / count, 0.0))
        return jax.tree.map(jnp.add, total, gradient)

    return lax.fori_loop(0, -(-count // block), add_block, jax.tree.map(jnp.zeros_like, params))


def device_value_and_gradient(
    model: Model, params: Tree, x: jax.Array, y: jax.Array, begin: jax.Array, count: jax.Array, block: int
) -> tuple[jax.Array, Tree]:
    """Return F_k(params) and grad F_k(params), walking the device's rows as `device_gradient` does."""

    def add_block(i: jax.Array, totals: tuple[jax.Array, Tree]) -> tuple[jax.Array, Tree]:
        xs, ys, inside = rows_in_block(x, y, begin + i * block, begin + count, block)
        weights = jnp.where(inside, 1.0 / count, 0.0)
        value = jnp.sum(weights * jnp.where(inside, model.loss(params, xs, ys), 0.0))
        gradient = mean_gradient(model, params, xs, ys, weights)
        return totals[0] + value, jax.tree.map(jnp.add, totals[1], gradient)

    nothing = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    return lax.fori_loop(0, -(-count // block), add_block, nothing)


def device_curvature(
    model: Model, params: Tree, along: Tree, x: jax.Array, y: jax.Array, begin: jax.Array, count: jax.Array, block: int
) -> Tree:
    """Return the Hessian of F_k at `params` times `along`: the gradient's derivative, without forming a matrix."""

    def add_block(i: jax.Array, total: Tree) -> Tree:
        xs, ys, inside = rows_in_block(x, y, begin + i * block, begin + count, block)
        weights = jnp.where(inside, 1.0 / count, 0.0)
        _, product = jax.jvp(lambda at: mean_gradient(model, at, xs, ys, weights), (params,), (along,))
        return jax.tree.map(jnp.add, total, product)

    return lax.fori_loop(0, -(-count // block), add_block, jax.tree.map(jnp.zeros_like, params))


def rows_in_block(
    x: jax.Array, y: jax.Array, first: jax.Array, end: jax.Array, block: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `block` consecutive rows of x and y, and which of them are among first, ..., end - 1."""
    start = jnp.minimum(first, len(x) - block)  # a slice may not reach beyond the array
    position = start + jnp.arange(block)
    xs, ys = (lax.dynamic_slice_in_dim(array, start, block) for array in (x, y))
    return xs, ys, (position >= first) & (position < end)
