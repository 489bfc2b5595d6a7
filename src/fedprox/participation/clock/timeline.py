"""The time line of a server that merges replies as they arrive: which device works when, on which version of the model.

`concurrency` devices are at work at a time. Each was given the model that was current when it was asked, its version.
The model moves with every `buffer` replies, which gives the next version. At one instant replies come first, then the
model, then requests: a free place is taken by the next of the current version's candidates (`candidates`). A device
asked at version t draws what it would draw in round t + 1 of the synchronous server.

A device that cannot finish before it becomes unavailable, or within a deadline in seconds, sends what fits if the
method merges partial work; otherwise its place is free again at that moment and its work is lost. A device that fails
is noticed when its reply should have come, or at the deadline where there is one. Where no device is at work and none
can be asked, the model moves with the replies received so far; without any, the server waits for devices to become
available. A device that was drawn m times takes m places and counts as m replies.

The time line does not depend on models: it can be followed without solving anything, as long as the number of steps of
a device is known. If a solver may stop before its budget, `steps_done` gives that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.clock.availability import (
    LONGEST_WAIT,
    WAIT,
    candidate_blocks,
    most_candidates,
    no_device_available,
)
from fedprox.participation.clock.candidates import Candidate, Candidates, FullWork
from fedprox.participation.clock.clock import Clock
from fedprox.participation.clock.event_queue import EventQueue, Job
from fedprox.participation.clock.timing import seconds_for, steps_within
from fedprox.participation.sampling import Cohort
from fedprox.participation.stragglers import Workload, further_failures

__all__ = ["Instant", "Timeline"]

_AT_ONCE = 256  # candidates that are prepared at once
Kept = Callable[[Workload], NDArray[np.bool_]]


@dataclass(frozen=True)
class Instant:
    """A moment at which the model moves."""

    started: float  # when the previous version was made
    time: float
    asked: list[Job]  # the devices asked since
    ended: list[Job]  # jobs that have ended since, in order; the model moves with those that reply
    away: int  # how often a candidate was found unavailable


@dataclass
class Timeline:
    """Devices at work between the models of a server.

    Args:
      clock: the devices' speeds and availability.
      offsets: of the population's training samples.
      kept: which replies the method merges, of devices that do what a `Workload` says.
      concurrency: how many devices are at work.
      buffer: how many replies move the model.
      steps_done: the steps that some jobs will have taken; None: their budgets.
    """

    clock: Clock
    offsets: NDArray[np.int64]
    kept: Kept
    concurrency: int
    buffer: int
    steps_done: Callable[[Sequence[Job]], Sequence[int]] | None = None
    now: float = 0.0
    version: int = 0
    asked: int = 0  # devices, since the start
    queue: EventQueue = field(default_factory=EventQueue)

    def __post_init__(self) -> None:
        deadline = self.clock.config.systems.deadline
        self._deadline = math.inf if isinstance(deadline, str) else float(deadline)
        self._begin()

    def _begin(self) -> None:
        self._at_work = {job.device for job in self.queue}
        self._free = self.concurrency - sum(job.draws for job in self.queue)
        self._begin_version()

    @property
    def deadline(self) -> float | None:
        """The seconds that bound one device's work; None: there is no bound."""
        return None if math.isinf(self._deadline) else self._deadline

    def next_merge(self) -> Instant:
        """Follow the devices until the model moves, to the next version."""
        started, looked = self.now, self.now
        ended: list[Job] = []
        replies = 0
        while True:
            while replies < self.buffer and len(self.queue) and self.queue.next_time <= self.now:
                job = self._end_next()
                ended.append(job)
                replies += job.draws * job.replies
            if replies >= self.buffer:
                break
            self._ask()
            if len(self.queue):
                self.now = looked = self.queue.next_time
            elif replies or not self._candidates.look_again():
                break
            elif self.now > looked + LONGEST_WAIT:
                raise no_device_available(self.version + 1)
            else:
                self.now += WAIT
        instant = Instant(started, self.now, self._asked_here, ended, self._candidates.away)
        self.version += 1
        self._begin_version()
        return instant

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in plain JSON values."""
        return {"asked": self.asked, "at_work": [job.row() for job in self.queue]}

    def restore(self, values: dict[str, Any], *, now: float, version: int) -> None:
        """Restore what `values` returned, at a moment and with a version."""
        self.queue = EventQueue([Job(*row) for row in values["at_work"]])
        self.now, self.version, self.asked = now, version, values["asked"]
        self._begin()

    def _begin_version(self) -> None:
        chosen, seed, round = self.clock.config.devices, self.clock.config.seed, self.version + 1
        most = most_candidates(max(chosen.per_round, self.concurrency))
        blocks = candidate_blocks(chosen.sampling, chosen.per_round, self.offsets, seed, round, most)
        source, at_once = self.clock.source, min(max(self.buffer, self._free), _AT_ONCE)
        self._candidates = Candidates(blocks, self.offsets, self._full_work, source.seconds_left, source.stays, at_once)
        self._asked_here: list[Job] = []  # at this version
        self._failed: list[bool] = []  # of the devices asked at this version, in their order

    def _end_next(self) -> Job:
        job = self.queue.pop()
        self._at_work.discard(job.device)
        self._free += job.draws
        self._candidates.has_ended(job.device)
        return job

    def _ask(self) -> None:
        """Give every free place to a device, at this moment and with the current version."""
        jobs: list[Job] = []
        while self._free > 0 and (found := self._candidates.next(self.now, self._at_work)) is not None:
            jobs.append(self._job(*found, place=len(self._asked_here) + len(jobs)))
            self._at_work.add(jobs[-1].device)
            self._free -= jobs[-1].draws
        if self.steps_done is not None and (working := [job for job in jobs if job.replies]):
            for job, steps in zip(working, self.steps_done(working), strict=True):
                job.seconds = self._seconds(job, steps)
        for job in jobs:
            self.queue.push(job)
        self._asked_here += jobs

    def _job(self, candidate: Candidate, left: float, place: int) -> Job:
        """Return the job of a device that is asked now, after `place` others at this version."""
        device, samples, draws, work = candidate
        limit = min(left, self._deadline)
        failed = self.clock.config.devices.failure > 0 and self._fails(place)
        steps, seconds, is_merged = work.steps, work.seconds, work.is_merged
        if seconds > limit:
            steps, seconds, is_merged = self._partial_work(candidate, limit)
        replies = is_merged and steps > 0 and not failed
        if not replies and (steps < work.steps or not math.isinf(self._deadline)):
            seconds = limit  # otherwise it is noticed when the reply should have come
        order, self.asked = self.asked, self.asked + 1
        epochs, is_straggler = steps / work.per_epoch, steps < work.steps
        outlook = (steps, epochs, is_straggler, failed, replies, work.kind, work.samples_per_second)
        return Job(order, self.version, device, samples, draws, self.now, seconds, *outlook)

    def _full_work(self, cohort: Cohort) -> list[FullWork]:
        solver = self.clock.config.solver
        devices = self.clock.source.at(cohort.devices, self.version + 1)
        per_epoch = np.asarray(steps_per_epoch(cohort.samples, solver.batch_size))
        most = per_epoch * solver.epochs
        seconds = seconds_for(most, cohort.samples, solver.batch_size, devices, self.clock.traffic)
        kept = self.kept(Workload(np.zeros(len(cohort), bool), most / per_epoch, most))
        columns = (devices.samples_per_second, most, per_epoch, seconds, kept)
        return [FullWork(*each) for each in zip(devices.kind, *(column.tolist() for column in columns), strict=True)]

    def _partial_work(self, candidate: Candidate, limit: float) -> tuple[int, float, bool]:
        """Return the steps of a device that fit within the limit, when its reply comes and whether it is merged."""
        solver, one = self.clock.config.solver, np.array([candidate.device])
        devices, samples = self.clock.source.at(one, self.version + 1), np.array([candidate.samples])
        most = np.array([candidate.work.steps])
        given = (samples, solver.batch_size, devices, self.clock.traffic)
        steps = steps_within(np.array([limit]), most, *given)
        kept = self.kept(Workload(np.array([True]), steps / candidate.work.per_epoch, steps))
        return int(steps[0]), float(seconds_for(steps, *given)[0]), bool(kept[0])

    def _seconds(self, job: Job, steps: int) -> float:
        solver = self.clock.config.solver
        devices = self.clock.source.at(np.array([job.device]), job.version + 1)
        given = (np.array([job.samples]), solver.batch_size, devices, self.clock.traffic)
        return float(seconds_for(np.array([steps]), *given)[0])

    def _fails(self, place: int) -> bool:
        """Return whether the device asked after `place` others fails: a share of the round's list, then of each K."""
        config, listed = self.clock.config, self._candidates.listed
        while place >= len(self._failed):
            size = config.devices.per_round if self._failed else listed
            block = 1 + (len(self._failed) - listed) // size if self._failed else 0
            marked = further_failures(
                size, share=config.devices.failure, seed=config.seed, round=self.version + 1, block=block
            )
            self._failed += marked.tolist()
        return self._failed[place]
