"""Continuing many runs: those that are complete are left alone, the others are resumed or started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedprox.experiments.scheduler import Ended, Event, Job, run_jobs
from fedprox.runs.folder import read_summary

__all__ = ["is_complete", "run_unfinished"]


def is_complete(job: Job) -> bool:
    """Return whether the job's run folder holds its outcome: all rounds, or an end by a stopping rule."""
    summary = read_summary(job.out)
    if summary is None:
        return False
    return summary["ended"] in ("converged", "diverged") or summary["rounds"] >= job.config.rounds


def run_unfinished(
    jobs: Sequence[Job], *, workers: int = 0, on_event: Callable[[Event], None] = lambda event: None
) -> list[Ended]:
    """Run the jobs that are not complete and return how each ended, in the order given."""
    complete = {index: Ended(job, read_summary(job.out)) for index, job in enumerate(jobs) if is_complete(job)}
    todo = [job for index, job in enumerate(jobs) if index not in complete]
    ended = iter(run_jobs(todo, workers=workers, on_event=on_event))
    return [complete[index] if index in complete else next(ended) for index in range(len(jobs))]
