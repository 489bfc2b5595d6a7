"""Models: pure functions on any pytree of parameters, and the ready-made ones by name."""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike

from fedprox.core.errors import ConfigError
from fedprox.models.linear_regression import linear_regression
from fedprox.models.model import Model, classifier, mean_gradient
from fedprox.models.networks import cnn, mlp
from fedprox.models.softmax_regression import softmax_regression
from fedprox.models.text import char_lstm, sentiment_lstm

__all__ = [
    "Model",
    "build",
    "char_lstm",
    "classifier",
    "cnn",
    "linear_regression",
    "mean_gradient",
    "mlp",
    "sentiment_lstm",
    "softmax_regression",
]

_BUILDERS: dict[str, Callable[[tuple[int, ...], int], Model]] = {
    "softmax_regression": lambda shape, classes: softmax_regression(_size(shape), classes),
    "linear_regression": lambda shape, classes: linear_regression(_size(shape)),
    "mlp": lambda shape, classes: mlp(_size(shape), classes),
    "cnn": cnn,
    "char_lstm": lambda shape, classes: char_lstm(classes, _length("char_lstm", shape)),
}


def build(name: str, shape: tuple[int, ...], classes: int, vectors: ArrayLike | None = None) -> Model:
    """Return the ready-made model `name` for examples of `shape` with `classes` labels.

    `vectors` (words, dimensions) are the word vectors that `sentiment_lstm` needs.
    """
    if name != "sentiment_lstm":
        return _BUILDERS[name](shape, classes)
    _length(name, shape)
    if vectors is None:
        raise ConfigError(f"`model.name` = {name!r} must be used with data that brings word vectors; got none")
    return sentiment_lstm(vectors, classes)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _length(name: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 1:
        raise ConfigError(f"`model.name` = {name!r} must be used with sequences of numbers; got examples of {shape}")
    return shape[0]
