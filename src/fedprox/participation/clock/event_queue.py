"""The queue of events on the simulated clock: devices at work, ordered by their next event."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["EventQueue", "Job"]


@dataclass(slots=True)
class Job:
    """A device at work, and what is known about its work when it is asked.

    Attributes:
      order: how many devices were asked before it.
      version: the number of the model that it was given.
      draws: how many replies it counts for.
      asked_at: the simulated time.
      seconds: how long after that its reply arrives, or the server stops waiting for it.
      budget, epochs: what it is given, in mini-batch steps and in epochs.
      straggler: whether it cannot do all E epochs.
      replies: whether it sends a reply that is merged.
      kind: the name of its class.
    """

    order: int
    version: int
    device: int
    samples: int
    draws: int
    asked_at: float
    seconds: float
    budget: int
    epochs: float
    straggler: bool
    failed: bool
    replies: bool
    kind: str
    samples_per_second: float

    @property
    def ends_at(self) -> float:
        """The simulated time of its reply, or at which the server stops waiting."""
        return self.asked_at + self.seconds

    def row(self) -> list[Any]:
        """Return the job in plain JSON values; `Job(*row)` is the job again."""
        return [getattr(self, name) for name in self.__slots__]


class EventQueue:
    """Jobs by their end; jobs that end at the same instant come in the order in which they were asked.

    >>> rest = (5, 1.0, False, False, True, "", 1.0)
    >>> queue = EventQueue([Job(each, 0, each, 10, 1, 0.0, end, *rest) for each, end in ((0, 3.0), (1, 2.0))])
    >>> queue.next_time, queue.pop().device, queue.pop().device, len(queue)
    (2.0, 1, 0, 0)
    """

    def __init__(self, jobs: list[Job] | None = None) -> None:
        self._heap = [(job.ends_at, job.order, job) for job in jobs or ()]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the jobs in the order in which they were asked."""
        return iter(sorted((entry[2] for entry in self._heap), key=lambda job: job.order))

    @property
    def next_time(self) -> float:
        """When the next job ends."""
        return self._heap[0][0]

    def push(self, job: Job) -> None:
        """Add a job."""
        heapq.heappush(self._heap, (job.ends_at, job.order, job))

    def pop(self) -> Job:
        """Take the job that ends next."""
        return heapq.heappop(self._heap)[2]
