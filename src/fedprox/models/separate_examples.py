"""A warning of losses of examples that depend on which others are in the batch.

Outputs of shape (examples, 1) minus targets of shape (examples,) have the shape (examples, examples), and a mean over
its second axis looks like one loss per example. Targets that are real numbers invite this mistake, so losses of such
data are tried on a few examples; labels index the outputs, and fail.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fedprox.core.compilation import compiled
from fedprox.core.trees import Tree
from fedprox.models.model import Model

__all__ = ["warn_of_mixed_examples"]

_FEW = 4


def warn_of_mixed_examples(model: Model, params: Tree, x: Any, y: Any) -> None:
    """Warn if another first example changes the losses of the examples after it."""
    if y.dtype.kind != "f" or len(y) < _FEW or model.gradient is not None:  # those with gradients are the library's own
        return
    few, targets = np.array(x[:_FEW]), np.array(y[:_FEW])
    loss = compiled(model.loss)
    before = np.asarray(loss(params, few, targets))[1:]
    few[0], targets[0] = few[1], targets[0] + 1
    after = np.asarray(loss(params, few, targets))[1:]
    if not np.allclose(before, after, rtol=1e-3, atol=1e-4, equal_nan=True):
        warnings.warn(
            f"the loss of an example should not depend on the other examples of its batch; with model {model.name} it "
            "does: are outputs and targets of different shapes subtracted?",
            stacklevel=3,
        )
