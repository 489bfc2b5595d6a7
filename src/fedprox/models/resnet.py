"""Residual networks for small images (He et al., 2016, Section 4.2) with group normalisation (Wu and He, 2018).

A 3x3 convolution with 16 channels, three stages of n blocks with 16, 32 and 64 channels, the mean over all pixels, and
a dense layer: 6 n + 2 layers with weights. A block adds to its input (two 3x3 convolutions, each normalised); the first
block of the second and third stage takes every other pixel, and its input is padded with zeros for the new channels.

Batch normalisation mixes the examples of a batch and keeps running means, which differ from device to device.
Group normalisation depends on one example only: with the channels in groups of equal size,

    out = scale * (x - mean) / sqrt(var + 1e-5) + shift,     mean, var over the pixels and channels of a group
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.models.draws import constant, keys
from fedprox.models.group_norm import group_norm_relu
from fedprox.models.layers import apply_dense, image_shape, init_convolution, init_dense, to_images
from fedprox.models.model import Model, classifier
from fedprox.models.one_object import one_object

__all__ = ["resnet"]

_STAGES = (16, 32, 64)
_GROUPS = 8


@one_object
def resnet(shape: tuple[int, ...], classes: int, layers: int = 20) -> Model:
    """Return the network with `layers` = 6 n + 2, for examples of `shape`: (height, width[, channels]) or (pixels,).

    The paper's 0.27 million parameters for CIFAR-10:

    >>> params = jax.eval_shape(resnet((32, 32, 3), 10, layers=20).init, jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    269722
    """
    blocks, rest = divmod(layers - 2, 6)
    if rest or blocks < 1:
        raise ConfigError(f"`layers` must be 6 n + 2 with n >= 1, such as 8 or 20; got {layers}")
    name = f"resnet{layers}"
    height, width, depth = image_shape(name, shape, least=8)

    def init(key: jax.Array) -> Tree:
        own = iter(keys(key, 2 + 2 * blocks * len(_STAGES)))
        params: Tree = {"first": _init_convolution(next(own), depth, _STAGES[0])}
        before = _STAGES[0]
        for stage, channels in enumerate(_STAGES, 1):
            for block in range(1, blocks + 1):
                params[f"stage{stage}_block{block}"] = {
                    "first": _init_convolution(next(own), before, channels),
                    "second": _init_convolution(next(own), channels, channels),
                }
                before = channels
        params["output"] = init_dense(next(own), before, classes)
        return params

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        image = _convolve(params["first"], to_images(x, (height, width, depth)))
        for stage in range(1, len(_STAGES) + 1):
            for block in range(1, blocks + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                image = _block(params[f"stage{stage}_block{block}"], image, stride)
        return apply_dense(params["output"], image.mean(axis=(1, 2)))

    return classifier(name, init, scores)


def _block(layers: Tree, image: jax.Array, stride: int) -> jax.Array:
    more = layers["second"]["scale"].size - image.shape[-1]
    kept = jnp.pad(image[:, ::stride, ::stride], [(0, 0)] * 3 + [(0, more)])
    return _convolve(layers["second"], _convolve(layers["first"], image, stride), added=kept)


def _init_convolution(key: jax.Array, inputs: int, outputs: int) -> Tree:
    """Return a 3x3 convolution and the normalisation after it, which makes a bias redundant."""
    weight = init_convolution(key, 3, inputs, outputs)["weight"]
    return {"scale": constant(outputs, 1.0), "shift": constant(outputs), "weight": weight}


def _convolve(layer: Tree, image: jax.Array, stride: int = 1, added: jax.Array | None = None) -> jax.Array:
    """Return a convolution, normalised, with ReLU; `added` is added before ReLU."""
    out = lax.conv_general_dilated(
        image,
        layer["weight"],
        (stride, stride),
        [(1, 1), (1, 1)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return group_norm_relu(layer, out, _GROUPS, added)
