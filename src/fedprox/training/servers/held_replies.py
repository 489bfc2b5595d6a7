"""Replies that are worked out before they are merged.

Replies to one version of the model can be worked out together, in any number: a reply depends on nothing but the
model, the device and its draws. They are worked out when the first of them is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fedprox.engines import RoundOutcome
from fedprox.methods import Reply
from fedprox.participation.clock.event_queue import Job

__all__ = ["HeldReplies", "HeldReply"]


class HeldReply(NamedTuple):
    """What a device replies."""

    reply: Reply
    steps: int
    drift2: float | None
    gamma: float | None


class HeldReplies:
    """What devices at work will reply.

    Args:
      solve: has jobs on one version done; gives every reply.
      most: how many jobs are done at a time, unless more are needed.
    """

    def __init__(self, solve: Callable[[Sequence[Job]], RoundOutcome], most: int) -> None:
        self._solve, self._most = solve, most
        self._waiting: dict[int, list[Job]] = {}  # by version, the next to reply first
        self._known: dict[int, HeldReply] = {}  # by the order in which devices were asked
        self._gamma_seconds = 0.0

    def add(self, jobs: Iterable[Job]) -> None:
        """Take note of jobs that will reply; those that are done already stay so."""
        fresh = [job for job in jobs if job.replies and job.order not in self._known]
        for version in {job.version for job in fresh}:
            own = [job for job in fresh if job.version == version]
            self._waiting[version] = sorted(
                [*self._waiting.get(version, ()), *own], key=lambda job: (job.ends_at, job.order)
            )

    def take(self, jobs: Sequence[Job]) -> list[HeldReply | None]:
        """Return what jobs that have ended reply, None where one does not, and forget it."""
        self._need([job for job in jobs if job.replies])
        return [self._known.pop(job.order) if job.replies else None for job in jobs]

    def steps(self, jobs: Sequence[Job]) -> list[int]:
        """Return how many steps jobs take, which are done for that."""
        self._need(jobs)
        return [self._known[job.order].steps for job in jobs]

    def take_gamma_seconds(self) -> float:
        """Return how long it took to measure gammas since this was last asked."""
        seconds, self._gamma_seconds = self._gamma_seconds, 0.0
        return seconds

    def _need(self, jobs: Sequence[Job]) -> None:
        missing: dict[int, set[int]] = {}
        for job in jobs:
            if job.order not in self._known:
                missing.setdefault(job.version, set()).add(job.order)
        for version in sorted(missing):
            waiting, needed = self._waiting.pop(version), missing[version]
            first = [job for job in waiting if job.order in needed]
            rest = [job for job in waiting if job.order not in needed]
            ahead = max(self._most - len(first), 0)
            self._do([*first, *rest[:ahead]])
            if rest[ahead:]:
                self._waiting[version] = rest[ahead:]

    def _do(self, jobs: Sequence[Job]) -> None:
        outcome = self._solve(jobs)
        self._gamma_seconds += outcome.gamma_seconds
        gammas = outcome.gammas or [None] * len(jobs)
        columns = (outcome.replies or (), outcome.steps, outcome.drift2, gammas)
        for job, received, steps, drift2, gamma in zip(jobs, *columns, strict=True):
            if received is None:
                raise RuntimeError(f"device {job.device} was asked at version {job.version} and gave no reply")
            self._known[job.order] = HeldReply(received.reply, steps, drift2, gamma)
