"""Counter-based randomness: every draw depends only on (seed, purpose, round, device).

The Philox generator maps a 128-bit key and a 256-bit counter to random words, like a cipher. The key is
(seed, purpose); round and device are the upper words of the counter and the place within a draw is the lowest one.
So no draw depends on the method, on mu, on the engine, on the number of workers or on what was drawn before, and
adding a purpose shifts nothing. Discrete draws use the raw words, whose stream NumPy guarantees to be stable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import ConfigError
from fedprox.core.philox import WORDS, philox_blocks

__all__ = ["Purpose", "generator", "generator_stream", "stream", "words", "words_of_devices"]


class Purpose(IntEnum):
    """What a draw is for. Numbers are part of the format: never reuse or renumber one."""

    DEVICES = 1  # which devices take part in a round
    STRAGGLERS = 2  # which of them are stragglers
    EPOCHS = 3  # how much work a straggler does
    ORDER = 4  # the order of a device's samples in each epoch of a round
    INITIAL_MODEL = 5
    MEASURED_DEVICES = 6  # the fixed sample of devices that is measured
    SYNTHETIC = 7  # the synthetic data of a device
    SYNTHETIC_SHARED = 8  # what all synthetic devices share, and their sizes
    SPLIT = 9  # which of a device's samples are test samples
    FAILURES = 10  # which devices return nothing
    SECOND_DEVICES = 11  # a second, independent draw of devices
    SHARED_STEPS = 12  # how many local steps all devices of a round take
    PARTITION = 20  # how samples are divided among devices
    VALIDATION = 21  # which of a device's training samples are set aside for validation
    HOLDOUT = 22  # which devices are held out
    SOLVER = 30  # what an opaque solver draws
    LANCZOS = 40  # the vector that an estimate of curvature starts from
    RESAMPLED_DEVICES = 41  # further sets of devices for one round, to estimate an expectation
    CLOCK_DEVICE = 50  # what a device is on the clock: its class, speed, network and time zone
    CLOCK_ROUND = 51  # how fast it is in one round
    CLOCK_CANDIDATES = 52  # which device is tried next when a chosen one is unavailable
    CLOCK_HABIT = 53  # what a device decides in a slot of time: whether to come or go
    FLEET_LINE = 54  # which line of a fleet file a device is
    FLEET_JOIN = 55  # which network or availability a line of an imported fleet gets
    SERVER_NOISE = 60  # the noise that the server adds to a round's sum
    DEVICE_NOISE = 61  # the share of it that a device adds to its own update
    ATTACKERS = 70  # which devices attack
    ATTACK_NOISE = 71  # the noise that an attacker sends
    PAPER_SUBSET = 80  # which devices and samples belong to a smaller copy of a population


def generator_stream(
    seed: int, purpose: Purpose, round: int = 0, device: int = 0
) -> AbstractContextManager[np.random.Generator]:
    """Lend a generator on the stream of one draw, for continuous distributions, until the end of the `with` block."""
    return _Loan(_lend(seed, purpose, round, device))


class _Loan(AbstractContextManager[np.random.Generator]):
    """A `with` block that gives a generator back at its end; faster than `contextmanager`."""

    __slots__ = ("_random",)

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def __enter__(self) -> np.random.Generator:
        return self._random

    def __exit__(self, *raised: object) -> None:
        _idle.append(self._random)


@contextmanager
def stream(seed: int, purpose: Purpose, round: int = 0, device: int = 0) -> Iterator[np.random.BitGenerator]:
    """Lend the stream of random words for one draw, until the end of the `with` block."""
    with generator_stream(seed, purpose, round, device) as random:
        yield random.bit_generator


def _lend(seed: int, purpose: Purpose, round: int, device: int) -> np.random.Generator:
    try:
        random = _idle.pop()
    except IndexError:  # after a check, another thread could still take the last one
        random = np.random.Generator(np.random.Philox(0))
    state: Any = {  # of plain numbers, which are read in half the time of arrays
        "bit_generator": "Philox",
        "state": {"counter": (0, 0, round, device), "key": (seed, int(purpose))},
        "buffer": _EMPTY,
        "buffer_pos": len(_EMPTY),
        "has_uint32": 0,
        "uinteger": 0,
    }
    random.bit_generator.state = state
    return random


# Generators that are not in use: making one takes ten times as long as setting one to another draw.
_idle: deque[np.random.Generator] = deque(maxlen=64)
_EMPTY = (0, 0, 0, 0)


def words(count: int, seed: int, purpose: Purpose, round: int = 0, device: int = 0) -> NDArray[np.uint64]:
    """Return the first `count` random 64-bit words of one draw."""
    if count == 0:
        return np.empty(0, np.uint64)
    with stream(seed, purpose, round, device) as bits:
        raw: NDArray[np.uint64] = bits.random_raw(count)
    return raw


def words_of_devices(
    counts: NDArray[np.int64],
    seed: int,
    purpose: Purpose,
    round: int | NDArray[np.int64],
    devices: NDArray[np.int64],
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return what `words` does for many devices: all words in one array, and where those of each device begin.

    They draw for one round, or each for its own.

    >>> drawn, begins = words_of_devices(np.array([3, 5]), 0, Purpose.ORDER, 1, np.array([4, 9]))
    >>> np.array_equal(drawn[begins[1] : begins[1] + 5], words(5, 0, Purpose.ORDER, round=1, device=9))
    True
    """
    blocks = -(-counts // WORDS)
    begins = np.cumsum(blocks) - blocks
    block = np.arange(1, blocks.sum() + 1) - np.repeat(begins, blocks)  # a draw's first block is 1
    rounds = round if isinstance(round, int) else np.repeat(round, blocks)
    drawn = philox_blocks((seed, int(purpose)), block, rounds, np.repeat(devices, blocks))
    return drawn.reshape(-1), begins * WORDS


def generator(seed: int, purpose: Purpose, round: int = 0, device: int = 0) -> np.random.Generator:
    """Return a NumPy generator on that stream, for draws from continuous distributions."""
    if not isinstance(seed, Integral) or not 0 <= seed < 1 << 63:
        raise ConfigError(f"`seed` must be an integer >= 0, below 2^63; got {seed!r}")
    counter, key = np.array([0, 0, round, device], np.uint64), np.array([seed, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))
