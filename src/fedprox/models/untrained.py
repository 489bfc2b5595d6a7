"""Parameters that gradients do not move: frozen ones, and statistics that training itself collects.

A model with batch statistics (batch normalisation) names them in `Model.statistics` and gives them new values in
`Model.training`; frozen parameters are named in `Model.frozen`. Both are part of the tree of parameters, like all
others. Their entries of every gradient are zero, and a step leaves a frozen one as it is and a statistic at its new
value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.core.name_patterns import matches_any
from fedprox.core.trees import Tree, map_names
from fedprox.models.host_model import HostModel, ModelAt, Sums
from fedprox.models.model import Array, Model

__all__ = ["FrozenHost", "after_step", "training_gradient"]


@dataclass(frozen=True)
class FrozenHost:
    """A host model whose gradients are zero for parameters that are frozen."""

    host: HostModel
    frozen: frozenset[str]

    @property
    def has_dropout(self) -> bool:
        """Whether the host model has dropout."""
        return getattr(self.host, "has_dropout", False)

    @contextmanager
    def at(self, params: Tree) -> Iterator[_FrozenAt]:
        """Return the model with the given parameters."""
        with self.host.at(params) as model:
            yield _FrozenAt(model, self.frozen)


@dataclass(frozen=True)
class _FrozenAt:
    model: ModelAt
    frozen: frozenset[str]

    def losses(self, x: Array, y: Array) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return self.model.losses(x, y)

    def sums(self, x: Array, y: Array) -> Sums:
        found = self.model.sums(x, y)
        gradient = map_names(lambda name, g: np.zeros_like(g) if name in self.frozen else g, found.gradient)
        return found._replace(gradient=gradient)

    def predictions(self, x: Array) -> NDArray[np.int32]:
        return self.model.predictions(x)


def training_gradient(model: Model, params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> tuple[Tree, Tree]:
    """Return the gradient of sum_i weights_i * loss_i in training, and the parameters with new statistics."""
    training = model.training
    if training is None:
        raise ValueError(f"model {model.name} has no training of its own")

    def objective(params: Tree) -> tuple[jax.Array, Tree]:
        losses, fresh = training(params, x, y, weights)
        return jnp.sum(weights * losses), fresh

    gradient, fresh = jax.grad(objective, has_aux=True)(params)
    return model.only_trained(gradient), fresh


def after_step(model: Model, before: Tree, stepped: Tree, fresh: Tree = None) -> Tree:
    """Return the parameters after a step: frozen ones as before, statistics as in `fresh`, all others stepped."""
    if not model.frozen and not model.statistics:
        return stepped

    def choose(name: str, before: jax.Array, stepped: jax.Array, fresh: jax.Array) -> jax.Array:
        if matches_any(name, model.frozen):
            return before
        return fresh if matches_any(name, model.statistics) else stepped

    return map_names(choose, before, stepped, before if fresh is None else fresh)
