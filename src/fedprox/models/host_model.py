"""The interface of a model that computes outside compiled programs, such as a PyTorch module.

Losses and gradients of such a model could be computed within a compiled program by callbacks to Python, with a copy of
all parameters for each. When complete devices are measured or differentiated, that is not necessary: its parameters are
set once for many devices, and the rows are passed directly.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedprox.core.trees import Tree

__all__ = ["HostModel", "ModelAt", "Sums"]

Array = NDArray[Any]


class Sums(NamedTuple):
    """Sums over some examples."""

    loss: float
    correct: int  # predictions that equal the label
    gradient: Tree  # of the summed loss


class ModelAt(Protocol):
    """A model with its parameters set."""

    def losses(self, x: Array, y: Array) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the loss of each example, and whether its label is predicted."""

    def sums(self, x: Array, y: Array) -> Sums:
        """Return summed loss, hits and gradient over some examples."""

    def predictions(self, x: Array) -> NDArray[np.int32]:
        """Return the label predicted for each example."""


class HostModel(Protocol):
    """Sets a model's parameters."""

    def at(self, params: Tree) -> AbstractContextManager[ModelAt]:
        """Return the model with the given parameters, to be used within a `with` statement by one thread."""
