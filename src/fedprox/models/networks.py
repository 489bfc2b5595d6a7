"""Two small neural networks for images and feature vectors, differentiated automatically."""

from __future__ import annotations

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.models.model import Model, classifier

__all__ = ["cnn", "mlp"]


@lru_cache(maxsize=32)  # one object for one model, so that compiled programs are found again
def mlp(features: int, classes: int, hidden: int = 128) -> Model:
    """Return a perceptron with one hidden layer of ReLU units.

    >>> mlp(features=4, classes=2).init(jax.random.key(0))["hidden"]["weight"].shape
    (4, 128)
    """

    def init(key: jax.Array) -> Tree:
        first, second = jax.random.split(key)
        return {"hidden": _dense(first, features, hidden), "output": _dense(second, hidden, classes)}

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        inner = jax.nn.relu(_apply(params["hidden"], x.reshape(len(x), -1)))
        return _apply(params["output"], inner)

    return classifier("mlp", init, scores)


@lru_cache(maxsize=32)  # one object for one model, so that compiled programs are found again
def cnn(shape: tuple[int, ...], classes: int, channels: tuple[int, int] = (16, 32)) -> Model:
    """Return two 5x5 convolutions, each with ReLU and 2x2 max pooling, and a dense layer.

    `shape` is one example's: (height, width), (height, width, channels), or (pixels,) of a square image.
    """
    height, width, depth = _image_shape(shape)
    flat = (height // 4) * (width // 4) * channels[1]

    def init(key: jax.Array) -> Tree:
        first, second, third = jax.random.split(key, 3)
        return {
            "conv1": _convolution(first, depth, channels[0]),
            "conv2": _convolution(second, channels[0], channels[1]),
            "output": _dense(third, flat, classes),
        }

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        image = x.reshape(len(x), height, width, depth)
        for layer in ("conv1", "conv2"):
            image = _pool(jax.nn.relu(_convolve(params[layer], image)))
        return _apply(params["output"], image.reshape(len(x), -1))

    return classifier("cnn", init, scores)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) == 1:
        side = math.isqrt(shape[0])
        if side * side == shape[0]:
            shape = (side, side)
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or min(shape[:2]) < 4:
        raise ConfigError(
            f"`model.name` = 'cnn' must be used with images of at least 4 x 4 pixels; got examples of {shape}"
        )
    return shape


def _dense(key: jax.Array, inputs: int, outputs: int) -> Tree:
    spread = math.sqrt(2.0 / inputs)
    return {"bias": jnp.zeros(outputs), "weight": spread * jax.random.normal(key, (inputs, outputs))}


def _apply(layer: Tree, x: jax.Array) -> jax.Array:
    return x @ layer["weight"] + layer["bias"]


def _convolution(key: jax.Array, inputs: int, outputs: int) -> Tree:
    spread = math.sqrt(2.0 / (25 * inputs))
    return {"bias": jnp.zeros(outputs), "weight": spread * jax.random.normal(key, (5, 5, inputs, outputs))}


def _convolve(layer: Tree, image: jax.Array) -> jax.Array:
    out = lax.conv_general_dilated(image, layer["weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return out + layer["bias"]


def _pool(image: jax.Array) -> jax.Array:
    return lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
