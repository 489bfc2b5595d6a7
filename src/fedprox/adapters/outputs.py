"""A model from a function that returns outputs: what all JAX libraries have in common."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedprox.core.trees import Tree
from fedprox.models import Model

__all__ = ["Loss", "Predict", "build_output_model", "cross_entropy", "label"]

Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""`loss(outputs, y) -> losses`, one per example."""
Predict = Callable[[jax.Array], jax.Array]
"""`predict(outputs) -> labels`, one per example."""


def cross_entropy(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Return -log of the probability of each label, given scores (examples, classes).

    >>> [loss] = cross_entropy(jnp.zeros((1, 4)), jnp.array([2])).tolist()
    >>> round(loss, 4)  # log 4
    1.3863
    """
    return jax.nn.logsumexp(outputs, axis=1) - jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]


def label(outputs: jax.Array) -> jax.Array:
    """Return the label with the largest score."""
    return jnp.argmax(outputs, axis=1)


def build_output_model(
    name: str,
    init: Callable[[jax.Array], Tree],
    outputs: Callable[[Tree, jax.Array], jax.Array],
    loss: Loss,
    predict: Predict | None,
) -> Model:
    """Return a model whose loss and predictions follow from its outputs."""

    def losses(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return loss(outputs(params, x), y)

    if predict is None:
        return Model(name, init, losses, None)

    def losses_and_labels(params: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = outputs(params, x)
        return loss(found, y), predict(found)

    return Model(name, init, losses, lambda params, x: predict(outputs(params, x)), losses_and_labels=losses_and_labels)
