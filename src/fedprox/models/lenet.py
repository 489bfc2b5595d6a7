"""The convolutional network of the NIID benchmark (Li et al., 2022, "Federated Learning on Non-IID Data Silos").

Two 5x5 convolutions with 6 and 16 channels and no padding, each with ReLU and 2x2 max pooling, then dense layers of
120, 84 and one unit per class: LeNet-5 with modern activations. Weights and biases start uniform within
1 / sqrt(inputs).
"""

from __future__ import annotations

import jax

from fedprox.core.trees import Tree
from fedprox.models.draws import keys
from fedprox.models.layers import (
    apply_dense,
    convolve_and_pool,
    convolve_and_pool_last,
    image_shape,
    init_convolution,
    init_dense,
    to_images,
)
from fedprox.models.model import Model, classifier
from fedprox.models.one_object import one_object

__all__ = ["lenet"]


@one_object
def lenet(shape: tuple[int, ...], classes: int) -> Model:
    """Return the network for examples of `shape`: (height, width), (height, width, channels) or (pixels,).

    >>> params = jax.eval_shape(lenet((32, 32, 3), 10).init, jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    62006
    """
    height, width, depth = image_shape("lenet", shape, least=16)
    flat = _after(height) * _after(width) * 16

    def init(key: jax.Array) -> Tree:
        own = keys(key, 5)
        return {
            "conv1": init_convolution(own[0], 5, depth, 6, "fan_in"),
            "conv2": init_convolution(own[1], 5, 6, 16, "fan_in"),
            "dense1": init_dense(own[2], flat, 120, "fan_in"),
            "dense2": init_dense(own[3], 120, 84, "fan_in"),
            "output": init_dense(own[4], 84, classes, "fan_in"),
        }

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        inner = convolved(params, to_images(x, (height, width, depth))).reshape(len(x), -1)
        for layer in ("dense1", "dense2"):
            inner = jax.nn.relu(apply_dense(params[layer], inner))
        return apply_dense(params["output"], inner)

    return classifier("lenet", init, scores)


def convolved(params: Tree, image: jax.Array) -> jax.Array:
    """Return the images after both convolutions and poolings; those of a large batch as vectors of examples."""
    if len(image) < 16:
        for layer in ("conv1", "conv2"):
            image = convolve_and_pool(params[layer], image, "VALID")
        return image
    image = image.transpose(1, 3, 2, 0)
    for layer in ("conv1", "conv2"):
        image = convolve_and_pool_last(params[layer], image, "VALID")
    return image.transpose(3, 0, 2, 1)


def _after(side: int) -> int:
    """Return the side length, in pixels, after both convolutions and poolings."""
    return ((side - 4) // 2 - 4) // 2
