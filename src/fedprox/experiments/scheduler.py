"""Many runs side by side, on all cores.

Independent runs need no shared memory, so each core gets its own process (`run_process`) that takes one job
after another and keeps its imports and compiled programs warm. Jobs and progress are lines of JSON on the process's
pipes, results are run folders. A run that fails, or a process that dies, affects that job only. When the scheduler
itself dies, its processes see their input end and exit, so that the runs can be resumed immediately.

Objects cannot be written as JSON, so runs with a user's objects run in this process, one after another, once the others
have ended. Parts that a config names are passed as names; the processes receive the search path of their modules.

A Ray cluster is one resource, which one run may use as a whole. So runs on Ray go one after another, with the number of
actors in their configs, unless the caller requests several at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedprox.config import Config
from fedprox.config.part_search import folders
from fedprox.config.resolution import names_modules
from fedprox.core.cache import cache_folder
from fedprox.core.machine import usable_cores
from fedprox.core.signals import exits_on_termination

if TYPE_CHECKING:
    from fedprox.training.result import Progress

__all__ = ["Ended", "Event", "Job", "run_jobs"]


@dataclass(frozen=True)
class Job:
    """A run to be done: its config and its run folder; with `resume` it continues what the folder holds.

    `objects` are what `fedprox.train` takes in place of what the config names. Such a run stays in this process.
    """

    name: str
    config: Config
    out: Path
    resume: bool = False
    objects: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """Progress of a job: the round it has reached, and that round's metrics if it was measured."""

    job: Job
    round: int
    metrics: dict[str, Any] | None


@dataclass(frozen=True)
class Ended:
    """How a job ended: with a summary, or with the sentence that says why not, and the kind of error."""

    job: Job
    summary: dict[str, Any] | None = None
    error: str | None = None
    kind: str = ""


@dataclass
class _Line:
    """What the threads of the scheduler share."""

    jobs: queue.SimpleQueue[tuple[int, Job]]
    on_event: Callable[[Event], None]
    on_end: Callable[[Ended], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False
    ended: dict[int, Ended] = field(default_factory=dict)


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
    on_end: Callable[[Ended], None] = lambda ended: None,
) -> list[Ended]:
    """Run all jobs on `workers` cores (0: all) and return how each ended, in the order given.

    For jobs on Ray `workers` is how many run at a time (0: one).

    `on_event` is called with the progress of each job, `on_end` when it has ended, from one thread at a time. An
    interrupt or a termination asks the running jobs to stop after their round, with a checkpoint; a second one does
    not wait for them.
    """
    elsewhere = [job for job in jobs if not job.objects]
    ended = iter(_run_elsewhere(elsewhere, workers, on_event, on_end))
    return [_run_here(job, on_event, on_end) if job.objects else next(ended) for job in jobs]


def _run_here(job: Job, on_event: Callable[[Event], None], on_end: Callable[[Ended], None]) -> Ended:
    from fedprox.experiments.run_process import run_job

    def report(progress: Progress) -> None:
        metrics = None if progress.metrics is None else dict(progress.metrics)
        on_event(Event(job, progress.round, metrics))

    answer = run_job(job.config, job.out, job.resume, [report], job.objects)
    ended = Ended(job, answer.get("summary"), answer.get("error"), answer.get("kind", ""))
    on_end(ended)
    return ended


def _run_elsewhere(
    jobs: Sequence[Job], workers: int, on_event: Callable[[Event], None], on_end: Callable[[Ended], None]
) -> list[Ended]:
    """Run jobs in separate processes."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache_folder()  # if it is not writable, this process warns once, not every process
    cores = workers or usable_cores()
    one_by_one = not workers and any(_on_ray(job) for job in jobs)
    processes = min(1 if one_by_one else cores, len(jobs))
    threads_each = max(1, cores // max(processes, 1))
    line = _Line(queue.SimpleQueue(), on_event, on_end)
    for index, job in enumerate(jobs):
        line.jobs.put((index, _with_workers(job, threads_each)))
    running: list[subprocess.Popen[str]] = []
    with exits_on_termination(), ThreadPoolExecutor(max(processes, 1)) as threads:
        serving = {threads.submit(_serve, line, running) for _ in range(processes)}
        try:
            _until_done(serving)
        except BaseException:
            with line.lock:
                line.stopped = True
                for process in running:
                    process.terminate()
            try:
                _until_done(serving)
            except BaseException:
                for process in running:
                    process.kill()  # a run folder survives that at any moment
                raise
            raise
    for thread in serving:
        thread.result()
    return [line.ended[index] for index in range(len(jobs))]


def _until_done(serving: set[Future[None]]) -> None:
    while wait(serving, timeout=0.2).not_done:
        pass  # woken periodically: signals are handled only in this thread


def _on_ray(job: Job) -> bool:
    return job.config.engine.name == "ray"


def _with_workers(job: Job, workers: int) -> Job:
    if _on_ray(job):
        return job  # its workers are actors of the cluster, and not of these cores
    engine = job.config.engine.model_copy(update={"workers": workers})
    return replace(job, config=job.config.model_copy(update={"engine": engine}))


def _serve(line: _Line, running: list[subprocess.Popen[str]]) -> None:
    """Keep one worker process busy until no job is left."""
    process: subprocess.Popen[str] | None = None
    while not line.stopped:
        try:
            index, job = line.jobs.get_nowait()
        except queue.Empty:
            break
        if process is not None and process.poll() is not None:
            _end(process)
            process = None
        process = process or _start(line, running)
        ended = _run(line, process, job) if process is not None else Ended(job, error="stopped before it began")
        with line.lock:
            line.ended[index] = ended
            line.on_end(ended)
    if process is not None:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Close the input of a worker process and wait for it; one that has died has no input."""
    with contextlib.suppress(BrokenPipeError):
        _pipe(process.stdin).close()
    process.wait()
    _pipe(process.stdout).close()


def _start(line: _Line, running: list[subprocess.Popen[str]]) -> subprocess.Popen[str] | None:
    with line.lock:
        if line.stopped:
            return None
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedprox.experiments.run_process"],  # nothing from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt at the terminal reaches only the scheduler, which passes it on
        )
        running.append(process)
        return process


def _run(line: _Line, process: subprocess.Popen[str], job: Job) -> Ended:
    settings = job.config.to_dict()
    request = json.dumps(
        {
            "config": settings,
            "out": str(job.out),
            "resume": job.resume,
            "folders": folders() if names_modules(settings) else [],
        }
    )
    try:
        _pipe(process.stdin).write(request + "\n")
        _pipe(process.stdin).flush()
    except BrokenPipeError:
        return Ended(job, error=f"its process could not start (exit code {process.wait()})")
    for text in _pipe(process.stdout):
        answer = json.loads(text)
        if "round" in answer:
            with line.lock:
                line.on_event(Event(job, answer["round"], answer["metrics"]))
        else:
            return Ended(job, answer.get("summary"), answer.get("error"), answer.get("kind", ""))
    return Ended(job, error=f"its process ended unexpectedly (exit code {process.wait()})")


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise RuntimeError("a worker process has no pipe")
    return pipe
