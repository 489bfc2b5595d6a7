"""The subproblem of a chosen device, and gradients of it.

    h_k(w) = F_k(w) + <c_k, w> + (mu_k / 2) ||w - a_k||^2          (Equation 2, with a linear term and an anchor)

    grad h_k(w) = grad F_k(w) + c_k + mu_k (w - a_k)

The anchor a_k is w^t unless a method says otherwise. FedAvg has mu = 0 and c_k = 0, FedProx c_k = 0; methods that
correct the local gradient put their correction in c_k. mu may differ by device, and by group of parameters: the
proximal term is then the sum of (mu_g / 2) ||w_g - a_g||^2 over the groups g.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedprox.core.errors import ConfigError
from fedprox.core.name_patterns import matches
from fedprox.core.trees import Tree, flatten_names, unflatten_names
from fedprox.models import Model, mean_gradient
from fedprox.population.loaded_samples import scalar

__all__ = [
    "Subproblem",
    "add_terms",
    "add_terms_to_value",
    "device_curvature",
    "device_gradient",
    "device_value_and_gradient",
    "flat_mu",
    "mu_per_leaf",
    "place_mu",
    "rows_in_block",
]


class Subproblem(NamedTuple):
    """What is added to a device's own loss F_k."""

    anchor: Tree  # a_k
    mu: Any  # a number, or a tree like the anchor with a number for each leaf
    linear: Tree = None  # c_k, or None where there is no linear term


def add_terms(problem: Subproblem, params: Tree, gradient: Tree) -> Tree:
    """Return grad h_k at `params`, given `gradient` = grad F_k there (or an estimate of it from a mini-batch)."""

    def proximal(gradient: jax.Array, param: jax.Array, anchor: jax.Array, mu: jax.Array) -> jax.Array:
        return gradient + mu * (param - anchor)

    total = jax.tree.map(proximal, gradient, params, problem.anchor, mu_per_leaf(problem))
    if problem.linear is None:
        return total
    return jax.tree.map(jnp.add, total, problem.linear)


def add_terms_to_value(problem: Subproblem, params: Tree, value: jax.Array) -> jax.Array:
    """Return h_k(params), given `value` = F_k(params)."""

    def distance2(param: jax.Array, anchor: jax.Array) -> jax.Array:
        return jnp.sum((param - anchor) ** 2)

    distances2 = jax.tree.map(distance2, params, problem.anchor)
    if _is_number(problem.mu):
        total = value + 0.5 * problem.mu * sum(jax.tree.leaves(distances2))
    else:
        total = value + 0.5 * sum(jax.tree.leaves(jax.tree.map(jnp.multiply, problem.mu, distances2)))
    if problem.linear is None:
        return total
    return total + sum(jax.tree.leaves(jax.tree.map(jnp.vdot, problem.linear, params)))


def mu_per_leaf(problem: Subproblem) -> Tree:
    """Return mu as a tree like the anchor, with a number for each leaf."""
    return jax.tree.map(lambda _: problem.mu, problem.anchor) if _is_number(problem.mu) else problem.mu


def flat_mu(problem: Subproblem) -> Any:
    """Return mu as a factor of the flat vector of parameters: a number, or a number for each entry."""
    if _is_number(problem.mu):
        return problem.mu
    return ravel_pytree(jax.tree.map(jnp.full_like, problem.anchor, problem.mu))[0]


def place_mu(mu: float | Mapping[str, float], params: Tree) -> Any:
    """Return mu where the programs run: a number, or for a mapping from patterns of names a number for each leaf.

    The first pattern that matches a parameter's name counts (`fedprox.core.name_patterns`).

    >>> params = {"hidden": {"weight": jnp.zeros(2)}, "output": {"weight": jnp.zeros(2)}}
    >>> float(place_mu({"output": 0.0, "*": 1.0}, params)["hidden"]["weight"])
    1.0
    """
    if not isinstance(mu, Mapping):
        return scalar(mu)
    found: dict[str, Any] = {}
    for name in flatten_names(params):
        value = next((mu[pattern] for pattern in mu if matches(name, pattern)), None)
        if value is None:
            raise ConfigError(f"mu must have a number for every parameter; {name!r} is matched by none of {list(mu)}")
        found[name] = scalar(value)
    return unflatten_names(found, like=jax.tree.map(lambda _: scalar(0.0), params))


def _is_number(mu: Any) -> bool:
    return jax.tree_util.all_leaves([mu])


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
