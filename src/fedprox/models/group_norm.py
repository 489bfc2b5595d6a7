"""Group normalisation (Wu and He, "Group Normalization", 2018), with a derivative written for speed.

For each example and group of channels, with mean m and variance v over the n pixels and channels of the group,

    z = (x - m) k,        k = (v + 1e-5)^(-1/2)
    dx = k (dz - mean(dz) - z mean(dz z))

Sums over the pixels come first, those over the channels of a group after them: XLA computes both at once slowly. The
barriers keep it from computing z again wherever it is used, in the order of axes of a convolution's derivative.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.trees import Tree

__all__ = ["group_norm"]

_EPSILON = 1e-5


def group_norm(layer: Tree, image: jax.Array, groups: int) -> jax.Array:
    """Return the image normalised group by group, with the layer's `scale` and `shift` per channel.

    >>> layer = {"scale": jnp.ones(2), "shift": jnp.zeros(2)}
    >>> group_norm(layer, jnp.array([[[[1.0, 3.0]], [[1.0, 3.0]]]]), groups=1).round(3).tolist()
    [[[[-1.0, 1.0]], [[-1.0, 1.0]]]]
    """
    batch, height, width, channels = image.shape
    normal = _normalise(groups, image.reshape(batch, height * width, channels))
    return (normal * layer["scale"] + layer["shift"]).reshape(image.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalise(groups: int, x: jax.Array) -> jax.Array:
    return _forward(groups, x)[0]


def _forward(groups: int, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    x = lax.optimization_barrier(x)
    centred = x - _group_mean(groups, x)
    k = lax.rsqrt(_group_mean(groups, jnp.square(centred)) + _EPSILON)
    normal, k = lax.optimization_barrier((centred * k, k))
    return normal, (normal, k)


def _backward(groups: int, kept: tuple[jax.Array, jax.Array], change: jax.Array) -> tuple[jax.Array]:
    normal, k = kept
    change = lax.optimization_barrier(change)
    along = normal * _group_mean(groups, change * normal)
    return (lax.optimization_barrier(k * (change - _group_mean(groups, change) - along)),)


_normalise.defvjp(_forward, _backward)


def _group_mean(groups: int, x: jax.Array) -> jax.Array:
    """Return the mean of each group, for every channel: (examples, 1, channels)."""
    examples, pixels, channels = x.shape
    sums = x.sum(axis=1).reshape(examples, groups, -1).sum(axis=-1)
    return jnp.repeat(sums / (pixels * channels // groups), channels // groups, axis=-1)[:, None]
