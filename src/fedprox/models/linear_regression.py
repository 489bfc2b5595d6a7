"""Linear regression by least squares, the problem that has a closed form.

    F(w, b) = mean_i (w . x_i + b - y_i)^2 / 2

It starts from zeros.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedprox.models.model import Model
from fedprox.runtime import SMALL
from fedprox.trees import Tree

__all__ = ["linear_regression"]


def linear_regression(features: int) -> Model:
    """Return least squares on flat inputs of `features` numbers.

    >>> model = linear_regression(features=2)
    >>> model.loss(model.init(jax.random.key(0)), jnp.ones((1, 2)), jnp.array([3.0])).tolist()  # 3^2 / 2
    [4.5]
    """

    def init(key: jax.Array) -> Tree:
        return {"bias": jnp.zeros(()), "weight": jnp.zeros(features)}

    return Model("linear_regression", init, _loss, None, _gradient, small=features <= SMALL)


def _residuals(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1) @ params["weight"] + params["bias"] - y


def _loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return _residuals(params, x, y) ** 2 / 2


def _gradient(params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> Tree:
    scaled = weights * _residuals(params, x, y)
    return {"bias": scaled.sum(), "weight": scaled @ x.reshape(len(x), -1)}
