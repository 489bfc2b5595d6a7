"""How long a device may work in a round: a number that the config gives, or one that follows the last rounds.

    deadline_k = 10 max(median t, budget_k median(t / budget)),        at least 60 seconds

over the complete replies of the last five rounds: ten times what the median device would need for the same work. t is
the time from sending a message to its reply, by the server's own clock, so that no device can shorten it for others.
Before there are three of them it is an hour. A device that is cut off still sends its partial work; the deadline is for
one that would never end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

__all__ = ["WorkTimes"]

_TIMES = 10
_ROUNDS = 5
_FEWEST = 3
_LEAST, _FIRST = 60.0, 3600.0  # seconds


class WorkTimes:
    """The deadlines of a run, which follow its rounds.

    Args:
      deadline: seconds, or "auto"; 0: as long as it takes.
      remembered: how many of the last rounds count; where replies are noted one by one, how many of these.

    >>> times = WorkTimes("auto")
    >>> times.allowed(100)
    3600.0
    >>> times.take_note([(100, 20.0), (100, 30.0), (50, 10.0)])
    >>> times.allowed(100), times.allowed(1000)
    (200.0, 2000.0)
    """

    def __init__(self, deadline: float | str, remembered: int = _ROUNDS) -> None:
        self._deadline = deadline
        self._recent: deque[list[Any]] = deque(maxlen=remembered)

    def allowed(self, budget: int) -> float:
        """Return the seconds that a device may work on a number of steps; 0: as long as it takes."""
        if self._deadline != "auto":
            return float(self._deadline)
        known = [(steps, seconds) for replies in self._recent for steps, seconds in replies]
        if len(known) < _FEWEST:
            return _FIRST
        typical = median(seconds for _, seconds in known)
        by_step = median(seconds / max(steps, 1) for steps, seconds in known)
        return max(_TIMES * max(typical, budget * by_step), _LEAST)

    def longest(self) -> float:
        """Return the seconds for a message that gives no budget: those for the largest of the last rounds."""
        return self.allowed(max((steps for replies in self._recent for steps, _ in replies), default=0))

    def take_note(self, replies: Sequence[tuple[int, float]]) -> None:
        """Remember the budgets of a round and when their replies were there."""
        if replies:
            self._recent.append([list(one) for one in replies])

    def values(self) -> list[Any]:
        """Return what a checkpoint keeps, in plain JSON values."""
        return list(self._recent)

    def restore(self, values: list[Any]) -> None:
        """Restore what `values` returned."""
        self._recent = deque(values, maxlen=self._recent.maxlen)
