"""The ready-made models as configs name them: each is shaped for a population.

A model's callable gets the population first; its other parameters are keys of `[model]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from fedprox.config.fields import Count
from fedprox.core.errors import ConfigError
from fedprox.models.char_transformer import char_transformer
from fedprox.models.lenet import lenet
from fedprox.models.linear_regression import linear_regression
from fedprox.models.mcmahan_cnn import mcmahan_cnn
from fedprox.models.model import Model
from fedprox.models.networks import cnn, mlp
from fedprox.models.resnet import resnet
from fedprox.models.softmax_regression import softmax_regression
from fedprox.models.text import char_lstm, sentiment_lstm

__all__ = [
    "Examples",
    "char_lstm_for",
    "char_transformer_for",
    "cnn_for",
    "eight_layer_resnet_for",
    "lenet_for",
    "linear_regression_for",
    "mcmahan_cnn_for",
    "mlp_for",
    "sentiment_lstm_for",
    "softmax_regression_for",
    "twenty_layer_resnet_for",
]


class Examples(Protocol):
    """What a model needs to know about a population."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""

    @property
    def classes(self) -> int:
        """The number of labels; 0: y are not labels."""

    @property
    def extras(self) -> Mapping[str, Any]:
        """Further arrays of the data, such as word vectors."""


def softmax_regression_for(population: Examples) -> Model:
    """Return softmax regression."""
    return softmax_regression(math.prod(population.shape), population.classes)


def linear_regression_for(population: Examples) -> Model:
    """Return linear regression."""
    return linear_regression(math.prod(population.shape))


def mlp_for(population: Examples, hidden: Count = 128) -> Model:
    """Return a perceptron with one hidden layer."""
    return mlp(math.prod(population.shape), population.classes, hidden)


def cnn_for(population: Examples) -> Model:
    """Return a small convolutional network."""
    return cnn(population.shape, population.classes)


def lenet_for(population: Examples) -> Model:
    """Return the convolutional network of the NIID benchmark."""
    return lenet(population.shape, population.classes)


def mcmahan_cnn_for(population: Examples) -> Model:
    """Return the convolutional network of McMahan et al. (2017)."""
    return mcmahan_cnn(population.shape, population.classes)


def eight_layer_resnet_for(population: Examples) -> Model:
    """Return a residual network of 8 layers with group normalisation."""
    return resnet(population.shape, population.classes, layers=8)


def twenty_layer_resnet_for(population: Examples) -> Model:
    """Return a residual network of 20 layers with group normalisation."""
    return resnet(population.shape, population.classes, layers=20)


def char_transformer_for(population: Examples, width: Count = 128, layers: Count = 2, heads: Count = 4) -> Model:
    """Return the transformer of the next character."""
    if width % heads:
        raise ConfigError(f"`model.width` must be a multiple of `model.heads` = {heads}; got {width}")
    length = _length("char_transformer", population)
    return char_transformer(population.classes, length, width, layers, heads)


def char_lstm_for(population: Examples, embedding: Count = 8, hidden: Count = 100) -> Model:
    """Return the model of the next character."""
    return char_lstm(population.classes, _length("char_lstm", population), embedding, hidden)


def sentiment_lstm_for(population: Examples, hidden: Count = 256) -> Model:
    """Return the model of a message's sentiment, over the word vectors of the data."""
    _length("sentiment_lstm", population)
    vectors = population.extras.get("vectors")
    if vectors is None:
        raise ConfigError("`model.name` = 'sentiment_lstm' must be used with data that has word vectors; got none")
    return sentiment_lstm(vectors, population.classes, hidden)


def _length(name: str, population: Examples) -> int:
    shape = population.shape
    if len(shape) != 1:
        raise ConfigError(f"`model.name` = {name!r} must be used with sequences of numbers; got examples of {shape}")
    return shape[0]
