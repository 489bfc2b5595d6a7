"""Group normalisation (Wu and He, "Group Normalization", 2018) with ReLU, with a derivative written for speed.

For each example and group of channels, with mean m and variance v over the n pixels and channels of the group,

    z = (x - m) k,        k = (v + 1e-5)^(-1/2),        out = max(scale z + shift + added, 0)
    dz = scale dout where out > 0, else 0,        dx = k (dz - mean(dz) - z mean(dz z))

Both passes take sums over the pixels of each channel, combine them per group, and then compute `out` and `dx` as
a x + b and a dout + b x + c with one a, b and c for each example and channel. The variance is mean(x^2) - m^2, so that
both sums are taken from x itself. Each pass over an image is compiled on its own (`fedprox.core.kernels.apart`):
XLA would compute parts of it again wherever they are used, in loops that it does not vectorise.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.kernels import apart
from fedprox.core.trees import Tree

__all__ = ["group_norm_relu"]

_EPSILON = 1e-5
_COLUMNS = 64  # numbers of an image that XLA's loops and sums take at once


def group_norm_relu(layer: Tree, image: jax.Array, groups: int, added: jax.Array | None = None) -> jax.Array:
    """Return ReLU of the image normalised group by group, with the layer's `scale` and `shift` per channel.

    Args:
      layer: `scale` and `shift`.
      image: (examples, height, width, channels).
      groups: how many groups the channels are divided into.
      added: an image that is added before ReLU, as at the end of a block of a residual network.

    >>> layer = {"scale": jnp.ones(2), "shift": jnp.zeros(2)}
    >>> group_norm_relu(layer, jnp.array([[[[1.0, 3.0]], [[1.0, 3.0]]]]), groups=1).round(3).tolist()
    [[[[0.0, 1.0]], [[0.0, 1.0]]]]
    """
    examples, height, width, channels = image.shape
    columns = channels * math.gcd(height * width, max(_COLUMNS // channels, 1))
    rows = image.reshape(examples, -1, columns)
    others = () if added is None else (added.reshape(rows.shape),)
    return _apply(groups, rows, layer["scale"], layer["shift"], *others).reshape(image.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(groups: int, x: jax.Array, scale: jax.Array, shift: jax.Array, *added: jax.Array) -> jax.Array:
    return _forward(groups, x, scale, shift, *added)[0]


def _forward(
    groups: int, x: jax.Array, scale: jax.Array, shift: jax.Array, *added: jax.Array
) -> tuple[jax.Array, tuple[Any, ...]]:
    moments = apart(partial(_moments, groups, x.shape[1:]))
    slope, offset, mean, k = moments(x.sum(axis=1), jnp.square(x).sum(axis=1), scale, shift)
    out = apart(_line)(x, slope, offset, *added)
    return out, (x, out, mean, k, scale, (None,) * len(added))


def _backward(groups: int, kept: tuple[Any, ...], change: jax.Array) -> tuple[jax.Array, ...]:
    x, out, mean, k, scale, added = kept
    change = apart(_where_positive)(out, change)
    factors = apart(partial(_factors, groups, x.shape[1:]))
    *plane, by_scale, by_shift = factors(change.sum(axis=1), (change * x).sum(axis=1), mean, k, scale)
    return apart(_plane)(change, x, *plane), by_scale, by_shift, *(change for _ in added)


_apply.defvjp(_forward, _backward)


def _moments(
    groups: int, shape: tuple[int, ...], sums: jax.Array, squares: jax.Array, scale: jax.Array, shift: jax.Array
) -> tuple[jax.Array, ...]:
    """Return a and b with out = a x + b, and each channel's mean and k."""
    mean_over_group = partial(_mean_over_group, groups, shape)
    mean, square = (mean_over_group(_by_channel(each, scale)) for each in (sums, squares))
    k = lax.rsqrt(jnp.maximum(square - mean * mean, 0) + _EPSILON)
    slope = scale * k
    return _across(slope, shape), _across(shift - mean * slope, shape), mean, k


def _factors(
    groups: int,
    shape: tuple[int, ...],
    sums: jax.Array,
    products: jax.Array,
    mean: jax.Array,
    k: jax.Array,
    scale: jax.Array,
) -> tuple[jax.Array, ...]:
    """Return a, b and c with dx = a dout + b x + c, and the derivatives by scale and shift."""
    total = _by_channel(sums, scale)
    along = (_by_channel(products, scale) - mean * total) * k  # the sum of dout z
    pull = -k * k * _mean_over_group(groups, shape, scale * along)
    offset = -k * _mean_over_group(groups, shape, scale * total) - pull * mean
    plane = (_across(each, shape) for each in (scale * k, pull, offset))
    return *plane, along.sum(axis=0), total.sum(axis=0)


def _line(x: jax.Array, slope: jax.Array, offset: jax.Array, *added: jax.Array) -> jax.Array:
    return jnp.maximum(sum(added, x * slope + offset), 0)


def _where_positive(out: jax.Array, change: jax.Array) -> jax.Array:
    return lax.select(out > 0, change, jnp.zeros_like(change))


def _plane(change: jax.Array, x: jax.Array, slope: jax.Array, pull: jax.Array, offset: jax.Array) -> jax.Array:
    return change * slope + x * pull + offset


def _by_channel(sums: jax.Array, channels: jax.Array) -> jax.Array:
    """Return sums over the pixels of each channel from those over rows of several pixels."""
    return sums.reshape(len(sums), -1, len(channels)).sum(axis=1)


def _across(each: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return numbers per channel as often as there are pixels in a row, for all rows: (examples, 1, columns)."""
    return jnp.tile(each, (1, shape[1] // each.shape[1]))[:, None]


def _mean_over_group(groups: int, shape: tuple[int, ...], sums: jax.Array) -> jax.Array:
    """Return the mean of each group, for every channel, from sums over the pixels: (examples, channels)."""
    channels = sums.shape[1]
    means = sums.reshape(len(sums), groups, -1).sum(axis=-1) * (groups / math.prod(shape))
    return jnp.repeat(means, channels // groups, axis=-1)
