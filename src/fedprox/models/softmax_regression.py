"""Softmax regression (multinomial logistic regression), the paper's convex model.

    F(W, b) = mean_i [ log sum_c exp(z_ic) - z_{i, y_i} ],    z_i = W x_i + b

It starts from zeros. The gradient has a closed form, sum_i weight_i (softmax(z_i) - e_{y_i}) (x_i, 1)^T; written out
with W stored as classes x features, one mini-batch step needs no transposed copies and is much faster than automatic
differentiation of the loss.

The Hessian is mean_i (diag(p_i) - p_i p_i^T) (x) (x_i, 1)(x_i, 1)^T with p_i = softmax(z_i). No eigenvalue of the first
factor exceeds 1/2, so none of the Hessian exceeds half the largest of mean_i (x_i, 1)(x_i, 1)^T.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.core.trees import Tree
from fedprox.models.draws import constant, uniform
from fedprox.models.model import Array, Model, WideForm, second_moment
from fedprox.models.one_object import one_object
from fedprox.models.products import exponentials, fill_columns, is_small, outer_products, scores, whole_lines

__all__ = ["glorot_start", "softmax_regression"]


@one_object
def softmax_regression(features: int, classes: int) -> Model:
    """Return softmax regression on flat inputs of `features` numbers.

    >>> model = softmax_regression(features=2, classes=3)
    >>> params = model.init(jax.random.key(0))
    >>> round(float(model.loss(params, jnp.ones((1, 2)), jnp.array([0]))[0]), 4)  # log 3
    1.0986
    """

    def init(key: jax.Array) -> Tree:
        return {"bias": constant(classes), "weight": constant((classes, features))}

    return Model(
        "softmax_regression",
        init,
        _loss,
        _predict,
        _gradient,
        small=is_small(classes, features),
        curvature_bound=_curvature_bound,
        wide=_wide_form(classes, features),
        features=features,
        classes=classes,
    )


def glorot_start(key: jax.Array, params: Tree) -> Tree:
    """Return the start of the paper's released code: weights uniform in +-sqrt(6 / (features + classes)), bias zero."""
    classes, features = params["weight"].shape
    limit = (6 / (features + classes)) ** 0.5
    return {**params, "weight": uniform(key, (classes, features), limit)}


def _wide_form(classes: int, features: int) -> WideForm | None:
    """Return softmax regression with columns of zeros; None where there are none to add."""
    columns = whole_lines(classes, features)
    if columns == features:
        return None
    return WideForm(
        columns,
        lambda params: {**params, "weight": fill_columns(params["weight"], columns)},
        lambda params: {**params, "weight": params["weight"][..., :features]},
    )


def _scores(params: Tree, x: jax.Array) -> jax.Array:
    return scores(params["weight"], x.reshape(len(x), -1)) + params["bias"][:, None]  # (classes, examples)


def _loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    z = _scores(params, x)
    return jax.nn.logsumexp(z, axis=0) - jnp.sum(jnp.where(_is_label(z, y), z, 0.0), axis=0)


def _predict(params: Tree, x: jax.Array) -> jax.Array:
    return jnp.argmax(_scores(params, x), axis=0)


def _gradient(params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> Tree:
    z = _scores(params, x)
    powers = exponentials(z - z.max(axis=0))
    residuals = powers * (weights / powers.sum(axis=0)) - jnp.where(_is_label(z, y), weights, 0.0)
    outer = outer_products(residuals, params["weight"], x.reshape(len(x), -1))
    return {"bias": residuals.sum(axis=1), "weight": outer}


def _is_label(z: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.arange(len(z))[:, None] == y  # (classes, examples)


def _curvature_bound(x: Array) -> float:
    return second_moment(np.hstack([x.reshape(len(x), -1), np.ones((len(x), 1))])) / 2
