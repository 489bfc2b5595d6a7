"""Continuing many runs: those that are complete are left alone, the others are resumed or started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedprox.experiments.scheduler import Ended, Event, Job, run_jobs
from fedprox.runs.folder import read_summary
from fedprox.runs.records import is_record_of, keep_record, use_record
from fedprox.runs.stopping import has_finished

__all__ = ["is_complete", "run_unfinished"]


def is_complete(job: Job) -> bool:
    """Return whether the job's run folder holds its outcome: all rounds, or an end by a stopping rule."""
    summary = read_summary(job.out)
    return summary is not None and has_finished(summary, job.config.rounds)


def run_unfinished(
    jobs: Sequence[Job],
    *,
    workers: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
    root: Path | None = None,
    records: Path | None = None,
) -> list[Ended]:
    """Run the jobs that are not complete and return how each ended, in the order given.

    `records` is a folder with small records of finished runs, laid out as the run folders are below `root`: what is
    in it counts as done, and what ends is added to it.
    """
    places = {} if root is None or records is None else {job.out: records / job.out.relative_to(root) for job in jobs}
    for job in jobs:
        if job.out in places and read_summary(job.out) is None and is_record_of(places[job.out], job.config):
            use_record(places[job.out], job.out)

    def keep(ended: Ended) -> None:
        if ended.job.out in places and is_complete(ended.job):
            keep_record(ended.job.out, places[ended.job.out], devices=True)

    complete = {index: Ended(job, read_summary(job.out)) for index, job in enumerate(jobs) if is_complete(job)}
    for ended_before in complete.values():
        keep(ended_before)
    todo = [job for index, job in enumerate(jobs) if index not in complete]
    ended = iter(run_jobs(todo, workers=workers, on_event=on_event, on_end=keep))
    return [complete[index] if index in complete else next(ended) for index in range(len(jobs))]
