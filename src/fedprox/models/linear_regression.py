"""Linear regression by least squares, the problem whose curvature is known exactly.

    F(w, b) = mean_i (w . x_i + b - y_i)^2 / 2

It starts from zeros. The Hessian is X^T X / n, the same everywhere, where the rows of X are (x_i, 1), or x_i without a
bias.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.core.trees import Tree
from fedprox.models.draws import constant
from fedprox.models.model import Array, Model, second_moment
from fedprox.models.one_object import one_object
from fedprox.models.products import is_small

__all__ = ["linear_regression"]


@one_object
def linear_regression(features: int, *, bias: bool = True) -> Model:
    """Return least squares on flat inputs of `features` numbers.

    >>> model = linear_regression(features=2)
    >>> model.loss(model.init(jax.random.key(0)), jnp.ones((1, 2)), jnp.array([3.0])).tolist()  # 3^2 / 2
    [4.5]
    """

    def init(key: jax.Array) -> Tree:
        weight = {"weight": constant(features)}
        return {"bias": constant(1), **weight} if bias else weight

    def curvature_bound(x: Array) -> float:
        flat = x.reshape(len(x), -1)
        return second_moment(np.hstack([flat, np.ones((len(x), 1))]) if bias else flat)

    return Model(
        "linear_regression",
        init,
        _loss,
        None,
        _gradient,
        small=is_small(1, features),
        curvature_bound=curvature_bound,
    )


def _residuals(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1) @ params["weight"] + params.get("bias", jnp.zeros(1))[0] - y


def _loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return _residuals(params, x, y) ** 2 / 2


def _gradient(params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> Tree:
    scaled = weights * _residuals(params, x, y)
    gradient = {"weight": scaled @ x.reshape(len(x), -1)}
    return {"bias": scaled.sum(keepdims=True), **gradient} if "bias" in params else gradient
