"""Models: pure functions on any pytree of parameters, and the ready-made ones by name."""

from __future__ import annotations

from collections.abc import Callable

from fedprox.models.linear_regression import linear_regression
from fedprox.models.model import Model, mean_gradient
from fedprox.models.networks import cnn, mlp
from fedprox.models.softmax_regression import softmax_regression

__all__ = ["Model", "build", "cnn", "linear_regression", "mean_gradient", "mlp", "softmax_regression"]

_BUILDERS: dict[str, Callable[[tuple[int, ...], int], Model]] = {
    "softmax_regression": lambda shape, classes: softmax_regression(_size(shape), classes),
    "mlp": lambda shape, classes: mlp(_size(shape), classes),
    "cnn": cnn,
}


def build(name: str, shape: tuple[int, ...], classes: int) -> Model:
    """Return the ready-made model `name` for examples of `shape` with `classes` labels."""
    return _BUILDERS[name](shape, classes)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
