"""How much is left of many runs, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["Remaining", "duration"]


class Remaining:
    """Counts what is done of runs whose durations are about known, and corrects those by the pace so far.

    >>> clock = iter([0.0, 30.0]).__next__
    >>> left = Remaining({Path("a"): 10.0, Path("b"): 30.0}, workers=1, clock=clock)
    >>> left.reached(Path("a"), 1.0)
    >>> left.finished, left.share, left.seconds()  # a took 30 s rather than 10, so b will take 90
    (1, 0.25, 90.0)
    """

    def __init__(
        self, expected: Mapping[Path, float], workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._expected = dict(expected)
        self._workers = max(1, min(workers, len(expected)))
        self._reached = dict.fromkeys(expected, 0.0)
        self._clock = clock
        self._started = clock()

    def reached(self, run: Path, share: float) -> None:
        """Record that a run is done to this share."""
        self._reached[run] = share

    @property
    def total(self) -> int:
        """How many runs there are."""
        return len(self._expected)

    @property
    def finished(self) -> int:
        """How many runs are done."""
        return sum(share >= 1 for share in self._reached.values())

    @property
    def share(self) -> float:
        """What is done of the expected seconds."""
        done = sum(self._expected[run] * share for run, share in self._reached.items())
        return done / (sum(self._expected.values()) or 1.0)

    def seconds(self) -> float:
        """Return how long the rest will take at the pace so far, or as expected while nothing is done yet."""
        share, elapsed = self.share, self._clock() - self._started
        if share == 0:
            return sum(self._expected.values()) / self._workers
        return elapsed * (1 - share) / share


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
