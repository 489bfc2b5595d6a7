"""The layers that the networks for images share: dense layers, convolutions, 2x2 max pooling.

Images are (batch, height, width, channels), kernels (height, width, inputs, outputs), dense weights (inputs, outputs).
Pooling compares slices, whose derivatives are fast; that of a sliding window is not.
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.models.draws import constant, keys, normal, uniform

__all__ = [
    "apply_dense",
    "convolve_and_pool",
    "convolve_and_pool_last",
    "image_shape",
    "init_convolution",
    "init_dense",
    "max_pool",
    "to_images",
]

Start = Literal["he", "fan_in"]


def init_dense(key: jax.Array, inputs: int, outputs: int, start: Start = "he") -> Tree:
    """Return the parameters of a dense layer.

    With `he` weights are normal with deviation sqrt(2 / inputs) and biases zero (He et al., 2015); with `fan_in` both
    are uniform within 1 / sqrt(inputs), as layers of PyTorch start.
    """
    return _init(key, (inputs, outputs), inputs, start)


def init_convolution(key: jax.Array, side: int, inputs: int, outputs: int, start: Start = "he") -> Tree:
    """Return the parameters of a convolution with kernels of side x side pixels; see `init_dense` for `start`."""
    return _init(key, (side, side, inputs, outputs), side * side * inputs, start)


def apply_dense(layer: Tree, x: jax.Array) -> jax.Array:
    """Return x W + b."""
    return x @ layer["weight"] + layer["bias"]


def convolve_and_pool(layer: Tree, image: jax.Array, padding: Literal["SAME", "VALID"] = "SAME") -> jax.Array:
    """Return a convolution of a batch of images, with 2 x 2 max pooling, the layer's bias and ReLU.

    Bias and ReLU are monotone, so they can follow the maximum: a quarter of the work.
    """
    out = lax.conv_general_dilated(image, layer["weight"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(max_pool(out) + layer["bias"])


def convolve_and_pool_last(layer: Tree, image: jax.Array, padding: Literal["SAME", "VALID"] = "SAME") -> jax.Array:
    """Return what `convolve_and_pool` does, for images (height, channels, width, batch).

    In this order a network with few channels is faster (`fedprox.core.convolutions.lanes`).
    """
    out = lax.conv_general_dilated(image, layer["weight"], (1, 1), padding, dimension_numbers=("HCWN", "HWIO", "HCWN"))
    height, channels, width, batch = out.shape
    pairs = out[: height // 2 * 2, :, : width // 2 * 2].reshape(height // 2, 2, channels, width // 2, 2, batch)
    rows = jnp.maximum(pairs[:, 0], pairs[:, 1])
    return jax.nn.relu(jnp.maximum(rows[..., 0, :], rows[..., 1, :]) + layer["bias"][:, None, None])


def max_pool(image: jax.Array) -> jax.Array:
    """Return the maximum of each 2 x 2 pixels; an odd last row or column is left out.

    Rows are compared first, then the halves of a row of pixel pairs: XLA computes both with whole vectors, and their
    derivatives too.

    >>> max_pool(jnp.arange(9.0).reshape(1, 3, 3, 1)).ravel().tolist()
    [4.0]
    """
    batch, height, width, channels = image.shape
    even = image[:, : height // 2 * 2, : width // 2 * 2]
    pairs = even.reshape(batch, height // 2, 2, width // 2, 2 * channels)
    rows = jnp.maximum(pairs[:, :, 0], pairs[:, :, 1])
    return jnp.maximum(rows[..., :channels], rows[..., channels:])


def to_images(x: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
    """Return a batch of examples as images (batch, height, width, channels) of floating-point numbers."""
    image = x.reshape(len(x), *shape)
    return image if jnp.issubdtype(image.dtype, jnp.floating) else image.astype(jnp.float32)


def image_shape(model: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Return (height, width, channels) of examples of a shape; refuse what is not an image of `least` x `least` pixels.

    >>> image_shape("cnn", (784,), least=4), image_shape("cnn", (32, 32, 3), least=4)
    ((28, 28, 1), (32, 32, 3))
    """
    found = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(found) == 1 and math.isqrt(found[0]) ** 2 == found[0]:
        found = (math.isqrt(found[0]),) * 2
    if len(found) == 2:
        found = (*found, 1)
    if len(found) != 3 or min(found[:2]) < least:
        raise ConfigError(
            f"`model.name` = {model!r} must be used with images of at least {least} x {least} pixels, as (height, "
            f"width), (height, width, channels) or one row of a square image; got examples of {shape}{_hint(found)}"
        )
    return found[0], found[1], found[2]


def _hint(shape: tuple[int, ...]) -> str:
    """Return the hint for images whose channels come first, as in PyTorch.

    >>> _hint((3, 32, 32))
    ': move the channels to the end, np.moveaxis(x, 1, -1)'
    """
    is_first = len(shape) == 3 and shape[0] <= 4 < min(shape[1:])
    return ": move the channels to the end, np.moveaxis(x, 1, -1)" if is_first else ""


def _init(key: jax.Array, shape: tuple[int, ...], inputs: int, start: Start) -> Tree:
    if start == "he":
        return {"bias": constant(shape[-1]), "weight": normal(key, shape, math.sqrt(2.0 / inputs))}
    first, second = keys(key, 2)
    limit = 1 / math.sqrt(inputs)
    return {
        "bias": uniform(first, shape[-1:], limit),
        "weight": uniform(second, shape, limit),
    }
