"""A real deadline: a device works until its budget or its time is spent, and returns the iterate it has (Section 5.2).

The limit applies where work is handed out. Every solver takes its steps from the `LocalProblem`: mini-batches, steps
over all samples, or permission for one more gradient. A `TimedProblem` hands out the same ones in the same order, and
none once the time is up. So the iterate is, bit for bit, the result of a simulation with that many steps as its budget.
Between two checks of the clock only as many steps are handed out as are expected to take a tenth of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.participation.budget import Piece
from fedprox.solvers import LocalProblem

__all__ = ["Deadline", "TimedProblem"]

_LOOK = 0.1  # seconds between two checks of the clock


class Deadline:
    """A moment by which the work must be done, and the pace at which it is done.

    >>> moments = iter([0.0, 1.0, 2.0, 3.0, 7.0])
    >>> deadline = Deadline(5.0, now=lambda: next(moments))
    >>> [deadline.allow(10) for _ in range(4)]  # one step at a time: each takes a second and more
    [1, 1, 1, 0]
    >>> deadline.passed, deadline.steps_per_second  # the first step, which may compile a program, is not counted
    (True, 0.4)
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end = now() + seconds
        self._given, self._since = 0, 0.0
        self._pieces, self._steps, self._seconds = 0, 0, 0.0
        self._pace = 0.0  # seconds for a step in the last piece
        self.passed = False

    def allow(self, steps: int) -> int:
        """Return how many of `steps` steps to take before asking again; 0 once the time is up."""
        moment = self._look()
        if moment >= self._end:
            self.passed = True
            return 0
        fitting = 1 if self._pieces < 2 else int(min(_LOOK, self._end - moment) / max(self._pace, 1e-9))
        self._given, self._since = max(1, min(steps, fitting)), moment
        return self._given

    def is_over(self) -> bool:
        """Return whether the time is up."""
        self.passed = self.passed or self._look() >= self._end
        return self.passed

    def stop(self) -> None:
        """Record that the work is done, so that the last piece counts towards the pace."""
        self._look()

    @property
    def steps_per_second(self) -> float | None:
        """The measured pace, or None where there was too little to measure."""
        return self._steps / self._seconds if self._seconds > 0 else None

    def _look(self) -> float:
        _finish_what_runs()
        moment = self._now()
        if self._given:
            self._pace = (moment - self._since) / self._given
            if self._pieces:
                self._steps, self._seconds = self._steps + self._given, self._seconds + moment - self._since
            self._pieces, self._given = self._pieces + 1, 0
        return moment


@dataclass(frozen=True)
class TimedProblem(LocalProblem):
    """The subproblem of a device that has until a deadline."""

    deadline: Deadline = field(kw_only=True)

    def affords(self, steps: int) -> bool:
        """Return whether `steps` steps in all are within the budget, and time is left."""
        return super().affords(steps) and not self.deadline.is_over()

    def fullbatch_steps(self, at_once: int = 0) -> Iterator[int]:
        """Yield how many steps over all samples to take next, until budget or time is spent."""
        for steps in super().fullbatch_steps(at_once):
            left = steps
            while left and (now := self.deadline.allow(left)):
                yield now
                left -= now
            if left:
                return

    def minibatches(self, piece: int, epochs_at_once: int = 0) -> Iterator[Piece]:
        """Yield the mini-batches of the budget in smaller pieces of the same shape, until the time is up."""
        for rows, first, steps in super().minibatches(piece, epochs_at_once):
            taken = 0
            while taken < steps and (now := self.deadline.allow(steps - taken)):
                yield Piece(np.roll(rows, -taken, axis=0), first + taken, now)
                taken += now
            if taken < steps:
                return


def _finish_what_runs() -> None:
    """Wait for running programs: an accelerator runs them in order, and finishes this one last."""
    if jax.default_backend() != "cpu":
        (jnp.zeros(()) + 0.0).block_until_ready()
