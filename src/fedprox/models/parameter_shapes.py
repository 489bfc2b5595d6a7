"""The shapes of a model's parameters, of which programs are chosen and compiled before there are any."""

from __future__ import annotations

from functools import lru_cache

import jax

from fedprox.core.trees import Tree
from fedprox.models.model import Model

__all__ = ["parameter_shapes"]


@lru_cache(maxsize=64)
def parameter_shapes(model: Model) -> Tree:
    """Return what `model.init` gives as shapes and types, a tree of `jax.ShapeDtypeStruct`.

    >>> from fedprox.models import linear_regression
    >>> parameter_shapes(linear_regression(3))["weight"].shape
    (3,)
    """
    return jax.eval_shape(lambda: model.init(jax.random.key(0)))  # within, where making the key compiles nothing
