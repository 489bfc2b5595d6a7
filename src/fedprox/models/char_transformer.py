"""A small transformer for the next character: decoder layers as in Vaswani et al. (2017), normalised first.

Characters and positions are embedded and added. A layer adds to its input h first causal self-attention, then a
two-layer perceptron, each of the normalised input:

    h <- h + W_o attention(norm(h)),      h <- h + W_2 gelu(W_1 norm(h) + b_1) + b_2

The label is the character after the last one, so the last layer is computed for the last position only.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from fedprox.core.errors import DataError
from fedprox.core.trees import Tree
from fedprox.models.draws import constant, keys, normal
from fedprox.models.layers import apply_dense
from fedprox.models.model import Model, classifier
from fedprox.models.one_object import one_object

__all__ = ["char_transformer"]

_DEVIATION = 0.02  # of all initial weights


@one_object
def char_transformer(classes: int, length: int = 80, width: int = 128, layers: int = 2, heads: int = 4) -> Model:
    """Return the model of the next of `classes` characters, from the codes (batch, length) of those before it.

    >>> params = jax.eval_shape(char_transformer(classes=80).init, jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    427600
    """

    def init(key: jax.Array) -> Tree:
        own = keys(key, layers + 3)
        return {
            "characters": _normal(own[0], (classes, width)),
            "positions": _normal(own[1], (length, width)),
            **{f"layer{index + 1}": _init_layer(own[3 + index], width, layers) for index in range(layers)},
            "norm": _init_norm(width),
            "output": _init_dense(own[2], width, classes),
        }

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        if x.shape[1:] != (length,):
            raise DataError(f"x must be sequences of {length} character codes; got examples of shape {x.shape[1:]}")
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise DataError(f"x must be integers, one per character; got {x.dtype}")
        codes = x.astype(jnp.int32)
        # numbers without a row give NaN, which no loss can hide
        h = params["characters"].at[codes].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        h = h + params["positions"]  # (batch, length, width)
        for index in range(layers):
            h = _layer(params[f"layer{index + 1}"], h, heads, last_only=index == layers - 1)
        return apply_dense(params["output"], _norm(params["norm"], h[:, -1]))

    return classifier("char_transformer", init, scores)


def _layer(layer: Tree, h: jax.Array, heads: int, *, last_only: bool) -> jax.Array:
    normal = _norm(layer["norm1"], h)
    kept = h[:, -1:] if last_only else h
    kept = kept + _attention(layer, normal[:, -kept.shape[1] :], normal, heads)
    inner = jax.nn.gelu(apply_dense(layer["dense1"], _norm(layer["norm2"], kept)), approximate=True)
    return kept + apply_dense(layer["dense2"], inner)


def _attention(layer: Tree, asked: jax.Array, known: jax.Array, heads: int) -> jax.Array:
    """Return causal attention of the last positions `asked` to all positions `known`, both (batch, length, width)."""
    batch, length, width = known.shape

    def by_head(part: str, x: jax.Array) -> jax.Array:
        return apply_dense(layer[part], x).reshape(batch, x.shape[1], heads, width // heads)

    q, k, v = by_head("query", asked), by_head("key", known), by_head("value", known)
    z = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    if asked.shape[1] > 1:
        z = jnp.where(jnp.tril(jnp.ones((length, length), bool)), z, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(z, axis=-1), v)
    return apply_dense(layer["mixed"], mixed.reshape(batch, -1, width))


def _norm(layer: Tree, h: jax.Array) -> jax.Array:
    centred = h - h.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * layer["scale"] + layer["shift"]


def _init_layer(key: jax.Array, width: int, layers: int) -> Tree:
    own = keys(key, 6)
    calm = 1 / math.sqrt(2 * layers)  # scaled so that 2 * layers additions start as small as one
    return {
        "norm1": _init_norm(width),
        "query": _init_dense(own[0], width, width),
        "key": _init_dense(own[1], width, width),
        "value": _init_dense(own[2], width, width),
        "mixed": _init_dense(own[3], width, width, calm),
        "norm2": _init_norm(width),
        "dense1": _init_dense(own[4], width, 4 * width),
        "dense2": _init_dense(own[5], 4 * width, width, calm),
    }


def _init_dense(key: jax.Array, inputs: int, outputs: int, scale: float = 1.0) -> Tree:
    return {"bias": constant(outputs), "weight": scale * _normal(key, (inputs, outputs))}


def _init_norm(width: int) -> Tree:
    return {"scale": constant(width, 1.0), "shift": constant(width)}


def _normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return normal(key, shape, _DEVIATION)
