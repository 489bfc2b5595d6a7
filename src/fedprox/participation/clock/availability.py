"""Which devices can be asked: devices are drawn by the sampling scheme, and unavailable ones are skipped.

The first candidates are the devices that the scheme draws without a clock, so if all are available the list is the
same. If some are unavailable, further candidates are drawn until K are found:

*Uniform*: the other devices in random order (Fisher and Yates), so that every K of the available devices are equally
likely. *Proportional*: further independent draws with p_k, so that each available device is drawn with p_k over the sum
of the available ones.

At most `most_candidates(K)` are tried, however many devices there are. If fewer than K of them are available the round
continues with those; if none is, the server waits and tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunError
from fedprox.core.randomness import Purpose, stream, words
from fedprox.participation.sampling import Cohort, draw_without_replacement, listed, owners

__all__ = [
    "LONGEST_WAIT",
    "WAIT",
    "Asked",
    "Here",
    "ask",
    "ask_chosen",
    "candidate_blocks",
    "most_candidates",
    "no_device_available",
    "others",
]

WAIT = 900.0  # seconds until the server tries again
LONGEST_WAIT = 7 * 86400.0
_BLOCK = 64

Indices = NDArray[np.int64]
Here = Callable[[Indices], NDArray[np.bool_]]
"""Which of some devices are available."""


@dataclass(frozen=True)
class Asked:
    """The devices of a round, and what it took to find them."""

    cohort: Cohort
    start: float  # the simulated time at which the round starts
    away: int  # how many candidates were skipped because they were unavailable


def most_candidates(per_round: int) -> int:
    """Return how many candidates are tried to find K devices."""
    return 1000 + 50 * per_round


def ask(
    scheme: str,
    per_round: int,
    offsets: Indices,
    seconds_left: Callable[[Indices, float], NDArray[np.float64]],
    *,
    now: float,
    seed: int,
    round: int,
    wanted: int | None = None,
) -> Asked:
    """Find the devices of a round among those that are available at `now`, or at the next moment when one is.

    They are K, or `wanted`, at least K: those of the round's list first, then further candidates.
    """
    start = now
    wanted = per_round if wanted is None else wanted
    while start <= now + LONGEST_WAIT:
        chosen: list[int] = []
        away = 0
        for block in candidate_blocks(scheme, per_round, offsets, seed, round, most_candidates(wanted)):
            here = seconds_left(block, start) > 0
            missing = wanted - len(chosen)
            last = np.flatnonzero(here)[missing - 1] + 1 if here.sum() >= missing else len(block)
            chosen += block[:last][here[:last]].tolist()
            away += int(last - here[:last].sum())
            if len(chosen) == wanted:
                break
        if chosen:
            return Asked(listed(np.array(chosen, np.int64), offsets), start, away)
        start += WAIT
    raise no_device_available(round)


def ask_chosen(
    choose: Callable[[Here], Cohort],
    seconds_left: Callable[[Indices, float], NDArray[np.float64]],
    *,
    now: float,
    round: int,
) -> Asked:
    """Find the devices of a round with a user's sampler: those of its choice that are available.

    If all of them are unavailable, the server waits and the sampler chooses again.
    """
    start = now
    while start <= now + LONGEST_WAIT:
        here = _here(seconds_left, start)
        cohort = choose(here)
        present = here(cohort.devices)
        if present.any():
            return Asked(cohort.only(present), start, int((~present).sum()))
        start += WAIT
    raise no_device_available(round)


def _here(seconds_left: Callable[[Indices, float], NDArray[np.float64]], start: float) -> Here:
    return lambda devices: seconds_left(devices, start) > 0


def no_device_available(round: int) -> RunError:
    """Return the error for a server that found no device within the longest wait."""
    return RunError(
        f"no device was available for {LONGEST_WAIT:.0f} simulated seconds in round {round}; "
        "`systems.profile` or `systems.trace` must have some time in which devices are available"
    )


def candidate_blocks(
    scheme: str, per_round: int, offsets: Indices, seed: int, round: int, most: int
) -> Iterator[Indices]:
    """Yield at most `most` candidates of a round, in blocks; the first block is what the scheme draws without a clock.

    With proportional sampling a device may occur several times.
    """
    random = words(per_round, seed, Purpose.DEVICES, round)
    more = most - per_round
    with stream(seed, Purpose.CLOCK_CANDIDATES, round) as bits:
        if scheme == "proportional":
            yield owners(random, offsets)
            for begin in range(0, more, _BLOCK):
                yield owners(bits.random_raw(min(_BLOCK, more - begin)), offsets)
            return
        first = draw_without_replacement(len(offsets) - 1, random)
        yield first
        rest = islice(others(len(offsets) - 1, set(first.tolist()), bits), more)
        while block := list(islice(rest, _BLOCK)):
            yield np.array(block, np.int64)


def others(total: int, taken: set[int], bits: np.random.BitGenerator) -> Iterator[int]:
    """Yield the numbers below `total` that are not taken, in random order, without a list of all of them."""
    moved: dict[int, int] = {}  # positions whose number the shuffle has changed
    for place in range(total):
        other = place + int(bits.random_raw()) % (total - place)
        number = moved.get(other, other)
        moved[other] = moved.pop(place, place)
        if number not in taken:
            yield number
