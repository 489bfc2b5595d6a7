"""The Philox generator for many draws at once, as array operations.

Setting NumPy's generator to one draw after another takes a few microseconds each. Here one computation gives the words
of many draws, the same that NumPy's generator gives. A block of four words is ten rounds on the counter (c0, c1, c2,
c3) with the key (k0, k1), all 64-bit numbers:

    (h0, l0) = M0 c0,  (h1, l1) = M1 c2          the upper and lower halves of 128-bit products
    c <- (h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0),   k <- k + W

(Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, Section 3.3: Philox4x64-10).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["HALF", "KEY_STEPS", "LOW", "LOWER", "MULTIPLIERS", "ROUNDS", "UPPER", "WORDS", "philox_blocks"]

Words = NDArray[np.uint64]

WORDS = 4  # of a block
ROUNDS = 10
_AT_ONCE = 2048  # blocks, whose arrays stay in the cache
MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], np.uint64)
KEY_STEPS = np.array([[0x9E3779B97F4A7C15], [0xBB67AE8584CAA73B]], np.uint64)
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
UPPER, LOWER = MULTIPLIERS >> HALF, MULTIPLIERS & LOW


def philox_blocks(
    key: tuple[int, int], block: NDArray[np.int64], round: int | NDArray[np.int64], device: NDArray[np.int64]
) -> Words:
    """Return the words of the blocks with counters (block, 0, round, device), (blocks, 4); one round, or one for each.

    >>> expected = np.random.Philox(key=np.array([7, 4], np.uint64), counter=[0, 0, 3, 9]).random_raw(8)
    >>> found = philox_blocks((7, 4), np.array([1, 2]), round=3, device=np.array([9, 9]))
    >>> np.array_equal(found.reshape(-1), expected)
    True
    """
    words = np.empty((len(block), WORDS), np.uint64)
    rounds = np.broadcast_to(np.asarray(round), block.shape)
    for begin in range(0, len(block), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        even = np.empty((2, len(block[part])), np.uint64)  # c0 and c2
        odd = np.zeros_like(even)  # c1 and c3
        even[0], even[1], odd[1] = block[part], rounds[part], device[part]
        _mix(even, odd, np.array([[key[0]], [key[1]]], np.uint64))
        words[part, 0::2], words[part, 1::2] = even.T, odd.T
    return words


def _mix(even: Words, odd: Words, key: Words) -> None:
    """Take all rounds, in place."""
    low, high, middle, rest = (np.empty_like(even) for _ in range(4))
    for number in range(ROUNDS):
        # even times a constant, half by half: (2^32 eh + el) (2^32 mh + ml)
        np.bitwise_and(even, LOW, out=low)
        np.right_shift(even, HALF, out=high)
        np.multiply(low, LOWER, out=middle)
        np.right_shift(middle, HALF, out=middle)
        np.multiply(high, LOWER, out=rest)
        np.add(middle, rest, out=middle)  # eh ml, and what el ml carries
        np.multiply(low, UPPER, out=low)
        np.bitwise_and(middle, LOW, out=rest)
        np.add(low, rest, out=low)
        np.right_shift(low, HALF, out=low)
        np.right_shift(middle, HALF, out=middle)
        np.multiply(high, UPPER, out=high)
        np.add(high, middle, out=high)
        np.add(high, low, out=high)  # the upper half of the product
        np.multiply(even, MULTIPLIERS, out=low)  # the lower half
        np.bitwise_xor(high[::-1], odd, out=even)
        np.bitwise_xor(even, key + KEY_STEPS * np.uint64(number), out=even)
        odd[:] = low[::-1]
