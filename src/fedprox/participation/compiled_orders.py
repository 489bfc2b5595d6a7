"""The mini-batches of a small device, drawn within a compiled program.

They are exactly those that `fedprox.participation.budget.minibatches` draws: the order of an epoch is the
ranking of its n_k random words, by their upper halves and where these are equal by position. A sample's place in it is
the number of samples that come before. Counting them takes n_k^2 comparisons, but many at once: for a small device that
is faster than sorting.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedprox.core.compiled_philox import upper_halves
from fedprox.core.philox import WORDS

__all__ = ["Orders", "draw_orders", "empty_orders"]

_BLOCKS = 8  # that are drawn at once
_TILE = 16  # samples that are compared at once


class Orders(NamedTuple):
    """Memory for the mini-batches of one device after another."""

    words: jax.Array
    rows: jax.Array  # (most steps * batch_size,)


def empty_orders(steps: int, batch_size: int) -> Orders:
    """Return the memory for devices whose epochs together have at most that many steps."""
    most = steps * batch_size
    return Orders(jnp.zeros(most + max(_BLOCKS * WORDS, _TILE), jnp.uint32), jnp.zeros(most, jnp.int32))


def draw_orders(
    orders: Orders, key: jax.Array, counter: jax.Array, samples: jax.Array, steps: jax.Array, batch_size: int
) -> Orders:
    """Return the mini-batches of a device's first steps, one after another; each epoch begins with a new one.

    What a short mini-batch does not fill is 0. `key` and `counter` are as `upper_halves` takes them.
    """
    per_epoch = -(-samples // batch_size)
    epochs = -(-steps // per_epoch)
    tiles = -(-samples // _TILE)

    def draw(chunk: jax.Array, words: jax.Array) -> jax.Array:
        drawn = upper_halves(key, counter, chunk * _BLOCKS + 1, _BLOCKS)  # a draw's first block is 1
        return lax.dynamic_update_slice_in_dim(words, drawn, chunk * _BLOCKS * WORDS, axis=0)

    words = lax.fori_loop(0, -(-epochs * samples // (_BLOCKS * WORDS)), draw, orders.words)

    def order(epoch: jax.Array, rows: jax.Array) -> jax.Array:
        begin, last = epoch * per_epoch * batch_size, ((epoch + 1) * per_epoch - 1) * batch_size
        rows = lax.dynamic_update_slice_in_dim(rows, jnp.zeros(batch_size, jnp.int32), last, axis=0)

        def take(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
            sample = tile * _TILE + jnp.arange(_TILE)
            own = lax.dynamic_slice_in_dim(words, epoch * samples + tile * _TILE, _TILE)
            return sample, jnp.where(sample < samples, own, _LAST)

        def rank(tile: jax.Array, rows: jax.Array) -> jax.Array:
            sample, own = take(tile)

            def count(other: jax.Array, before: jax.Array) -> jax.Array:
                numbers, words = take(other)
                pairs = zip(numbers, words, strict=True)
                is_before = [(word < own) | ((word == own) & (number < sample)) for number, word in pairs]
                return reduce(jnp.add, [each.astype(jnp.int32) for each in is_before], before)

            places = lax.fori_loop(0, tiles, count, jnp.zeros(_TILE, jnp.int32))

            def put(i: jax.Array, rows: jax.Array) -> jax.Array:
                place = lax.dynamic_index_in_dim(places, i, keepdims=False)
                return lax.dynamic_update_index_in_dim(rows, tile * _TILE + i, begin + place, 0)

            return lax.fori_loop(0, jnp.minimum(_TILE, samples - tile * _TILE), put, rows)

        return lax.fori_loop(0, tiles, rank, rows)

    return Orders(words, lax.fori_loop(0, epochs, order, orders.rows))


_LAST = np.uint32(2**32 - 1)  # for padding: it comes before no sample
