"""The devices that a server can ask while one version of the model is current, in the order of that version's round.

Version t is the model of the synchronous server before round t + 1. So its candidates are those of round t + 1: the
devices that the sampling scheme lists for the round, then further candidates, as in `availability`. A device is asked
at most once per version. A device at work is skipped until it has replied. An unavailable one is skipped for this
version, unless no device is at work and the server must wait.

What the clock needs to know about candidates is computed for all available ones of a block at once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.participation.sampling import Cohort, listed

__all__ = ["Candidate", "Candidates", "FullWork"]

Indices = NDArray[np.int64]


class FullWork(NamedTuple):
    """The clock's values for a device in a round with all E epochs."""

    kind: str
    samples_per_second: float
    steps: int
    per_epoch: int
    seconds: float  # until the reply
    is_merged: bool  # whether the method merges such a reply


class Candidate(NamedTuple):
    """A device that can be asked."""

    device: int
    samples: int
    draws: int
    work: FullWork


class Candidates:
    """The candidates of one version.

    Args:
      blocks: the devices, in the order in which they are to be asked.
      offsets: of the population's training samples.
      prepare: returns the clock's values for the devices of a cohort, in their order.
      seconds_left: for how long devices stay available from a moment on.
      stays: the same for one device.
      at_once: how many of them are prepared at once.
    """

    def __init__(
        self,
        blocks: Iterator[Indices],
        offsets: Indices,
        prepare: Callable[[Cohort], list[FullWork]],
        seconds_left: Callable[[Indices, float], NDArray[np.float64]],
        stays: Callable[[int, float], float],
        at_once: int,
    ) -> None:
        self._stays = stays
        self._blocks, self._offsets, self._at_once = blocks, offsets, at_once
        self._drawn: Cohort | None = None  # of the last block, what is not prepared yet
        self._prepare, self._seconds_left = prepare, seconds_left
        self._known: list[tuple[int, int, int]] = []  # device, samples, draws
        self._works: list[FullWork | None] = []  # None: it was unavailable
        self._looks: list[float] = []  # how long each stays, from the moment on when it was prepared
        self._moments: list[float] = []
        self._seen: set[int] = set()
        self._next = 0
        self._at_work: dict[int, int] = {}  # device -> position, of those skipped because they are at work
        self._returned: list[int] = []  # positions of those among them that have replied since
        self._away: list[int] = []
        self.listed = 0  # how many devices the round's list has
        self.away = 0  # how often a device was found unavailable

    def next(self, now: float, at_work: Collection[int]) -> tuple[Candidate, float] | None:
        """Take the next device that can be asked, with the seconds for which it stays; None where there is none."""
        while self._returned or self._has_more(now):
            if self._returned:
                position = heapq.heappop(self._returned)
            else:
                position, self._next = self._next, self._next + 1
            device, samples, draws = self._known[position]
            if device in at_work:
                self._at_work[device] = position
                continue
            left = self._looks[position]
            if now != self._moments[position] and not math.isinf(left):  # one that never goes away is there
                left = self._stays(device, now)
            if left > 0:
                work = self._works[position] or self._prepare(_alone(device, samples, draws))[0]
                return Candidate(device, samples, draws, work), left
            self._away.append(position)
            self.away += 1
        return None

    def has_ended(self, device: int) -> None:
        """Record that a device is no longer at work."""
        if (position := self._at_work.pop(device, None)) is not None:
            heapq.heappush(self._returned, position)

    def look_again(self) -> bool:
        """Try the unavailable devices again; return whether there are any."""
        found = bool(self._away)
        self._returned = sorted([*self._returned, *self._away])
        self._away = []
        return found

    def _has_more(self, now: float) -> bool:
        """Prepare the next candidates once all have been tried; return whether there is one."""
        while self._next == len(self._known):
            if self._drawn is None:
                block = next(self._blocks, None)
                if block is None:
                    return False
                self._drawn = self._listed(block)
            part, rest = _split(self._drawn, self._at_once)
            self._drawn = rest if len(rest) else None
            if len(part):
                left = self._seconds_left(part.devices, now)
                self._looks += left.tolist()
                self._moments += [now] * len(part)
                columns = (part.devices.tolist(), part.samples.tolist(), part.draws.tolist())
                self._known += zip(*columns, strict=True)
                there = left > 0
                if there.all():
                    self._works += self._prepare(part)
                else:
                    works = iter(self._prepare(part.only(there)) if there.any() else ())
                    self._works += [next(works) if one else None for one in there.tolist()]
        return True

    def _listed(self, block: Indices) -> Cohort:
        """Return the devices of a block that are new; further draws count for one reply each."""
        cohort = listed(block, self._offsets)
        devices = cohort.devices.tolist()
        if not self._seen:
            self.listed = len(devices)
        else:
            fresh = np.array([device not in self._seen for device in devices], bool)
            cohort = Cohort(cohort.devices[fresh], cohort.samples[fresh], np.ones(int(fresh.sum()), np.int64))
        self._seen.update(devices)
        return cohort


def _alone(device: int, samples: int, draws: int) -> Cohort:
    return Cohort(np.array([device]), np.array([samples]), np.array([draws]))


def _split(cohort: Cohort, count: int) -> tuple[Cohort, Cohort]:
    parts = (slice(None, count), slice(count, None))
    first, rest = (Cohort(cohort.devices[part], cohort.samples[part], cohort.draws[part]) for part in parts)
    return first, rest
