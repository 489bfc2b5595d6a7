"""The compiled loop that walks the samples of a group of devices: losses, hits and gradients come out of it together.

It goes from device to device and, within a device, over its rows block by block. Sizes are not part of its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.compilation import compiled
from fedprox.core.trees import Tree
from fedprox.measures.host_pass import Places, walk_on_host
from fedprox.models import Model
from fedprox.models.model import evaluate, evaluate_and_differentiate
from fedprox.solvers.subproblem import rows_in_block

__all__ = ["GROUP", "Places", "walk_program"]

GROUP = 256  # most devices in one call


@lru_cache(maxsize=32)
def walk_program(model: Model, block: int) -> Callable[..., Any]:
    """Return the compiled walk over a group of devices.

    `program(params, x, y, places, span) -> (losses, correct, norms2, sums)` for the devices first, ..., first + count -
    1 of `places`, with span = (first, count): one entry per device in the first three, and for each of the weights the
    sum of weight * n_k grad F_k. A model that computes on the host is walked there (`host_pass`).
    """
    if model.host is not None:
        return partial(walk_on_host, model.host)

    def program(
        params: Tree, x: jax.Array, y: jax.Array, places: Places, span: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, tuple[Tree, ...]]:
        zero = jax.tree.map(jnp.zeros_like, params) if places.weights else ()

        def over_blocks(begin: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, Tree]:
            def add_block(i: jax.Array, sums: tuple[jax.Array, jax.Array, Tree]) -> tuple[jax.Array, jax.Array, Tree]:
                loss, correct, gradient = sums
                xs, ys, inside = rows_in_block(x, y, begin + i * block, begin + size, block)
                if places.weights:
                    weights = inside.astype(loss.dtype)
                    losses, labels, more = evaluate_and_differentiate(model, params, xs, ys, weights)
                    gradient = jax.tree.map(jnp.add, gradient, more)
                else:
                    losses, labels = evaluate(model, params, xs, ys)
                loss += jnp.sum(jnp.where(inside, losses, 0.0))
                if labels is not None:
                    correct += jnp.sum(inside & (labels == ys))
                return loss, correct, gradient

            return lax.fori_loop(0, -(-size // block), add_block, (jnp.float32(0), jnp.int32(0), zero))

        def add_device(k: jax.Array, sums: tuple[Any, ...]) -> tuple[Any, ...]:
            losses, corrects, norms2, totals = sums
            device = span[0] + k
            loss, correct, gradient = over_blocks(places.begins[device], places.sizes[device])
            norm2 = sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)), start=jnp.float32(0))
            size = places.sizes[device].astype(jnp.float32)
            return (
                lax.dynamic_update_index_in_dim(losses, loss, k, 0),
                lax.dynamic_update_index_in_dim(corrects, correct, k, 0),
                lax.dynamic_update_index_in_dim(norms2, norm2 / (size * size), k, 0),
                tuple(
                    jax.tree.map(lambda so_far, leaf, weight=weight: so_far + weight[device] * leaf, total, gradient)
                    for weight, total in zip(places.weights, totals, strict=True)
                ),
            )

        nothing = (jnp.zeros(GROUP), jnp.zeros(GROUP, jnp.int32), jnp.zeros(GROUP), (zero,) * len(places.weights))
        return lax.fori_loop(0, span[1], add_device, nothing)

    return compiled(program, small=model.small)
