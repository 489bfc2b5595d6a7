"""Two small neural networks for images and feature vectors, differentiated automatically."""

from __future__ import annotations

import jax

from fedprox.core.trees import Tree
from fedprox.models.draws import keys
from fedprox.models.layers import apply_dense, convolve_and_pool, image_shape, init_convolution, init_dense, to_images
from fedprox.models.model import Model, classifier
from fedprox.models.one_object import one_object

__all__ = ["cnn", "mlp"]


@one_object
def mlp(features: int, classes: int, hidden: int = 128) -> Model:
    """Return a perceptron with one hidden layer of ReLU units.

    >>> mlp(features=4, classes=2).init(jax.random.key(0))["hidden"]["weight"].shape
    (4, 128)
    """

    def init(key: jax.Array) -> Tree:
        first, second = keys(key, 2)
        return {"hidden": init_dense(first, features, hidden), "output": init_dense(second, hidden, classes)}

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        inner = jax.nn.relu(apply_dense(params["hidden"], x.reshape(len(x), -1)))
        return apply_dense(params["output"], inner)

    return classifier("mlp", init, scores)


@one_object
def cnn(shape: tuple[int, ...], classes: int, channels: tuple[int, int] = (16, 32)) -> Model:
    """Return two 5x5 convolutions, each with ReLU and 2x2 max pooling, and a dense layer.

    `shape` is one example's: (height, width), (height, width, channels), or (pixels,) of a square image.
    """
    height, width, depth = image_shape("cnn", shape, least=4)
    flat = (height // 4) * (width // 4) * channels[1]

    def init(key: jax.Array) -> Tree:
        first, second, third = keys(key, 3)
        return {
            "conv1": init_convolution(first, 5, depth, channels[0]),
            "conv2": init_convolution(second, 5, channels[0], channels[1]),
            "output": init_dense(third, flat, classes),
        }

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        image = to_images(x, (height, width, depth))
        for layer in ("conv1", "conv2"):
            image = convolve_and_pool(params[layer], image)
        return apply_dense(params["output"], image.reshape(len(x), -1))

    return classifier("cnn", init, scores)
