"""A model's loss is one number per example: checked at the start, since a mean would silently train another objective.

A mean over a batch is broadcast against the weights of its examples without an error, so that short batches, entire
devices and evaluations would all be weighted wrongly.
"""

from __future__ import annotations

import jax
import numpy as np

from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.models.model import Model

__all__ = ["check_losses"]

_ROWS = 2  # a single row could not distinguish a mean from a loss per example


def check_losses(model: Model, params: Tree, x: np.ndarray, y: np.ndarray) -> None:
    """Refuse a model whose loss on a batch of x and y is not one number per example; nothing is computed."""
    batch = [jax.ShapeDtypeStruct((_ROWS, *array.shape[1:]), array.dtype) for array in (x, y)]
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), params)
    found = jax.tree.leaves(jax.eval_shape(model.loss, shapes, *batch))
    if len(found) != 1 or found[0].shape != (_ROWS,):
        got = ", ".join(str(each.shape) for each in found) or "nothing"
        raise ConfigError(
            f"the loss of model {model.name!r} must be one number per example, of shape (examples,), not a mean; "
            f"for {_ROWS} examples it has shape {got}"
        )
