"""The paper's two models of text: two LSTM layers over a sequence, and a dense layer on the last hidden state.

`char_lstm` predicts the next character (Shakespeare); it learns its embedding of characters. `sentiment_lstm` predicts
whether a message is positive (Sent140); its word vectors are given and fixed.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedprox.core.errors import DataError
from fedprox.core.trees import Tree
from fedprox.models.draws import constant, keys, uniform
from fedprox.models.lstm import init_layer, last_hidden
from fedprox.models.model import Model, classifier
from fedprox.models.one_object import one_object

__all__ = ["char_lstm", "sentiment_lstm"]


@one_object
def char_lstm(classes: int, length: int = 80, embedding: int = 8, hidden: int = 100) -> Model:
    """Return the model of the next of `classes` characters, from the codes (batch, length) of those before it.

    All matrices start uniform within Glorot's limit, biases at zero (see `init_layer` for the LSTM's).

    >>> model = char_lstm(classes=80)
    >>> params = model.init(jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    132720
    >>> model.predict(params, jnp.zeros((2, 80), int)).shape
    (2,)
    """

    def init(key: jax.Array) -> Tree:
        first, second = keys(key, 2)
        return {"embedding": _glorot(first, classes, embedding), **_init(second, embedding, hidden, classes)}

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        if x.shape[1:] != (length,):
            raise DataError(f"x must be sequences of {length} character codes; got examples of shape {x.shape[1:]}")
        return _scores(params, _looked_up(params["embedding"], x))

    return classifier("char_lstm", init, scores)


def sentiment_lstm(vectors: ArrayLike, classes: int = 2, hidden: int = 256) -> Model:
    """Return the model of the sentiment of a message, x (batch, words) numbers of rows of `vectors` (words, dim).

    The vectors are not parameters: they are not trained, sent or saved. They become part of the compiled programs, so
    give only those of the words in the data. All matrices start uniform within Glorot's limit, biases at zero (see
    `init_layer` for the LSTM's).

    >>> model = sentiment_lstm(vectors=jnp.ones((1000, 300)))
    >>> sorted(model.init(jax.random.key(0)))
    ['layer1', 'layer2', 'output']
    """
    table = jnp.asarray(vectors, jnp.float32)
    if table.ndim != 2 or 0 in table.shape:
        raise DataError(f"word vectors must be an array (words, dimensions); got shape {table.shape}")

    def init(key: jax.Array) -> Tree:
        return _init(key, table.shape[1], hidden, classes)

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        if x.ndim != 2:
            raise DataError(f"x must be sequences of word numbers; got examples of shape {x.shape[1:]}")
        return _scores(params, _looked_up(table, x))

    return classifier("sentiment_lstm", init, scores)


def _init(key: jax.Array, inputs: int, hidden: int, classes: int) -> Tree:
    first, second, third = keys(key, 3)
    return {
        "layer1": init_layer(first, inputs, hidden),
        "layer2": init_layer(second, hidden, hidden),
        "output": {"bias": constant(classes), "weight": _glorot(third, hidden, classes)},
    }


def _scores(params: Tree, inputs: jax.Array) -> jax.Array:
    last = last_hidden([params["layer1"], params["layer2"]], inputs)
    return last @ params["output"]["weight"] + params["output"]["bias"]


def _looked_up(table: jax.Array, x: jax.Array) -> jax.Array:
    """Return row x[b, t] of the table at [t, b]; numbers without a row give NaN, which no loss can hide."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise DataError(f"x must be integers, one per character or word; got {x.dtype}")
    numbers = x.T.astype(jnp.int32)
    return table.at[numbers].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def _glorot(key: jax.Array, rows: int, columns: int) -> jax.Array:
    limit = math.sqrt(6 / (rows + columns))
    return uniform(key, (rows, columns), limit)
