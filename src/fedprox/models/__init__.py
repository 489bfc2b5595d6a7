"""Models: pure functions on any pytree of parameters, and the ready-made ones by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from fedprox.config import Config, ModelConfig
from fedprox.config.parts import build_part, check_kind
from fedprox.models.by_name import Examples
from fedprox.models.char_transformer import char_transformer
from fedprox.models.lenet import lenet
from fedprox.models.linear_regression import linear_regression
from fedprox.models.mcmahan_cnn import mcmahan_cnn
from fedprox.models.model import Model, classifier, hint_at_adapter, mean_gradient
from fedprox.models.networks import cnn, mlp
from fedprox.models.resnet import resnet
from fedprox.models.softmax_regression import softmax_regression
from fedprox.models.text import char_lstm, sentiment_lstm

__all__ = [
    "Model",
    "build",
    "build_for",
    "char_lstm",
    "char_transformer",
    "classifier",
    "cnn",
    "lenet",
    "linear_regression",
    "mcmahan_cnn",
    "mean_gradient",
    "mlp",
    "resnet",
    "sentiment_lstm",
    "softmax_regression",
]


class _Examples(NamedTuple):
    shape: tuple[int, ...]
    classes: int
    extras: Mapping[str, Any]


def build(name: str, shape: tuple[int, ...], classes: int, vectors: ArrayLike | None = None) -> Model:
    """Return the ready-made model `name` for examples of `shape` with `classes` labels.

    `vectors` (words, dimensions) are the word vectors that `sentiment_lstm` needs.
    """
    extras = {} if vectors is None else {"vectors": vectors}
    return build_for(ModelConfig(name=name), _Examples(shape, classes, extras))


def build_for(config: ModelConfig, population: Examples, seed: int = 0, run: Config | None = None) -> Model:
    """Return the model that the config names, shaped for a population; `run` is the complete config."""
    given = {"population": population, "seed": seed, "config": run}
    model: Model = build_part("models", "model.name", config, given)
    check_kind(model, Model, "a Model", "model.name", config.name, hint_at_adapter)
    return model
