"""The convolutional network of McMahan et al. (2017), "Communication-Efficient Learning of Deep Networks".

Two 5x5 convolutions with 32 and 64 channels, each with ReLU and 2x2 max pooling, a dense layer of 512 units with ReLU,
and one unit per class: 1,663,370 parameters for MNIST, as the paper states.
"""

from __future__ import annotations

import jax

from fedprox.core.trees import Tree
from fedprox.models.draws import keys
from fedprox.models.layers import apply_dense, convolve_and_pool, image_shape, init_convolution, init_dense, to_images
from fedprox.models.model import Model, classifier
from fedprox.models.one_object import one_object

__all__ = ["mcmahan_cnn"]


@one_object
def mcmahan_cnn(shape: tuple[int, ...], classes: int) -> Model:
    """Return the network for examples of `shape`: (height, width), (height, width, channels) or (pixels,).

    Convolutions keep the size of an image (zeros around it).

    >>> params = jax.eval_shape(mcmahan_cnn((28, 28), 10).init, jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    1663370
    """
    height, width, depth = image_shape("mcmahan_cnn", shape, least=4)
    flat = (height // 4) * (width // 4) * 64

    def init(key: jax.Array) -> Tree:
        first, second, third, fourth = keys(key, 4)
        return {
            "conv1": init_convolution(first, 5, depth, 32),
            "conv2": init_convolution(second, 5, 32, 64),
            "dense": init_dense(third, flat, 512),
            "output": init_dense(fourth, 512, classes),
        }

    def scores(params: Tree, x: jax.Array) -> jax.Array:
        image = to_images(x, (height, width, depth))
        for layer in ("conv1", "conv2"):
            image = convolve_and_pool(params[layer], image)
        inner = jax.nn.relu(apply_dense(params["dense"], image.reshape(len(x), -1)))
        return apply_dense(params["output"], inner)

    return classifier("mcmahan_cnn", init, scores)
