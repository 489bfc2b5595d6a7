"""Waiting, by the time that this process was awake.

A campaign runs beside other work: it may be stopped for minutes, or its machine may sleep. Such times are not those of
the command that it waits for, so no more than a second of each pause counts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

__all__ = ["Stopwatch", "has_ended", "wait_until"]

_TICK = 0.05
_LONGEST_TICK = 1.0


class Stopwatch:
    """Counts seconds, as long as it is read at least once a second."""

    def __init__(self) -> None:
        self._last, self._seconds = time.monotonic(), 0.0

    def seconds(self) -> float:
        """Return the seconds since the start in which this process was awake."""
        now = time.monotonic()
        self._seconds += min(now - self._last, _LONGEST_TICK)
        self._last = now
        return self._seconds


def wait_until(is_done: Callable[[float], bool], seconds: float, watch: Stopwatch | None = None) -> bool:
    """Call `is_done`, which may wait for the seconds that it is given, until it is true; return False after `seconds`.

    >>> wait_until(lambda tick: True, 1.0), wait_until(lambda tick: bool(time.sleep(tick)), 0.1)
    (True, False)
    """
    watch = watch or Stopwatch()
    end = watch.seconds() + seconds
    while not is_done(min(_TICK, max(end - watch.seconds(), 0.0))):
        if watch.seconds() >= end:
            return False
    return True


def has_ended(process: subprocess.Popen[bytes]) -> Callable[[float], bool]:
    """Return whether a process has ended, for `wait_until`."""

    def ended(tick: float) -> bool:
        try:
            process.wait(tick)
        except subprocess.TimeoutExpired:
            return False
        return True

    return ended
