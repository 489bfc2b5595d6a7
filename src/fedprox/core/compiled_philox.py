"""The Philox generator within a compiled program; `fedprox.core.philox` has the equations.

JAX computes with 32-bit numbers unless 64-bit ones are enabled, as they are here. Programs receive 64-bit numbers as
two halves.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from fedprox.core.philox import HALF, KEY_STEPS, LOW, LOWER, MULTIPLIERS, ROUNDS, UPPER

__all__ = ["halves", "upper_halves"]


def halves(numbers: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return each number as its lower and its upper half.

    >>> halves(np.array([[1, 2**32 + 5]], np.uint64)).tolist()
    [[1, 0, 5, 1]]
    """
    return numbers.astype("<u8").view("<u4").astype(np.uint32)


def upper_halves(key: jax.Array, counter: jax.Array, first: jax.Array, blocks: int) -> jax.Array:
    """Return the upper halves of the words of `blocks` blocks from number `first` on, (4 * blocks,).

    `key` are the halves of (seed, purpose), `counter` those of (round, device).
    """
    with jax.enable_x64(True):
        key, counter = _joined(key), _joined(counter)
        block = first.astype(jnp.uint64) + jnp.arange(blocks, dtype=jnp.uint64)
        even = jnp.stack([block, jnp.broadcast_to(counter[0], blocks)])  # c0 and c2
        odd = jnp.stack([jnp.zeros_like(block), jnp.broadcast_to(counter[1], blocks)])  # c1 and c3

        def mix(_: jax.Array, numbers: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            even, odd, key = numbers
            low, high = even & LOW, even >> HALF
            middle = high * LOWER + ((low * LOWER) >> HALF)
            upper = high * UPPER + (middle >> HALF) + ((low * UPPER + (middle & LOW)) >> HALF)
            return upper[::-1] ^ odd ^ key, (even * MULTIPLIERS)[::-1], key + KEY_STEPS

        even, odd, _ = lax.fori_loop(np.int32(0), np.int32(ROUNDS), mix, (even, odd, key[:, None]))
        words = jnp.stack([even[0], odd[0], even[1], odd[1]], axis=1)
        return (words >> HALF).astype(jnp.uint32).reshape(-1)


def _joined(numbers: jax.Array) -> jax.Array:
    low, high = numbers[0::2].astype(jnp.uint64), numbers[1::2].astype(jnp.uint64)
    return low | (high << HALF)
