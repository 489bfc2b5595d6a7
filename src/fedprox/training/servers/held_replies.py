"""Replies that are computed before they are merged.

Replies of devices at work can be computed together, in any number: a reply depends on nothing but the model that the
device was given, the device and its draws. All are computed when the first of them is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

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
      solve: computes jobs, which may be on different versions; returns their replies in order.
      most: how many jobs are done at a time, unless more are needed.
    """

    def __init__(self, solve: Callable[[Sequence[Job]], list[HeldReply]], most: int) -> None:
        self._solve, self._most = solve, most
        self._waiting: dict[int, Job] = {}  # by the order in which devices were asked
        self._known: dict[int, HeldReply] = {}

    def add(self, jobs: Iterable[Job]) -> None:
        """Register jobs that will reply; those that are done already stay done."""
        for job in jobs:
            if job.replies and job.order not in self._known:
                self._waiting[job.order] = job

    def take(self, jobs: Sequence[Job]) -> list[HeldReply | None]:
        """Return what jobs that have ended reply, None where one does not, and forget it."""
        self._need([job for job in jobs if job.replies])
        return [self._known.pop(job.order) if job.replies else None for job in jobs]

    def steps(self, jobs: Sequence[Job]) -> list[int]:
        """Return how many steps jobs take; computes the jobs."""
        self._need(jobs)
        return [self._known[job.order].steps for job in jobs]

    def _need(self, jobs: Sequence[Job]) -> None:
        """Compute jobs, and with them waiting ones, in the order of their ends."""
        needed = {job.order: self._waiting.pop(job.order) for job in jobs if job.order not in self._known}
        if not needed:
            return
        ahead = list(self._waiting.values())
        room = max(self._most - len(needed), 0)
        if len(ahead) > room:
            ahead = sorted(ahead, key=attrgetter("ends_at", "order"))[:room]
        for job in ahead:
            del self._waiting[job.order]
        together = sorted([*needed.values(), *ahead], key=attrgetter("version", "order"))
        self._known.update(zip([job.order for job in together], self._solve(together), strict=True))
