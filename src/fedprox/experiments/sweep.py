"""A grid of runs: every combination of the values of some settings, on all cores.

A sweep can be started again at any time: what has finished is left alone, what was interrupted is continued.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedprox.config import Config, with_overrides
from fedprox.config.recipes import load_settings
from fedprox.config.toml import toml_value
from fedprox.core.errors import ConfigError, RunError, short
from fedprox.experiments.compare import Comparison, check_apart, failure
from fedprox.experiments.given_objects import check_counts, check_job_continues, named_objects
from fedprox.experiments.scheduler import Ended, Event, Job, run_jobs
from fedprox.experiments.unfinished import is_complete
from fedprox.runs.folder import check_out, read_complete
from fedprox.runs.reader import load_run
from fedprox.runs.seed_groups import group_runs

__all__ = ["Axis", "Sweep", "axis", "grid", "run_grid", "sweep"]

# What the final accuracy of an experiment is on: the first of these columns that it has.
BEST_BY = ("personal_validation_accuracy", "validation_accuracy", "personal_test_accuracy", "test_accuracy")


@dataclass(frozen=True)
class Axis:
    """A setting and the values it takes, as they are written."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """How a grid ended: the run folders that are complete, and the jobs that failed."""

    done: list[Path]
    failed: list[Ended]
    skipped: int

    def table(self) -> list[dict[str, Any]]:
        """Return one row per experiment (means over its seeds), the best first.

        Best is the highest final accuracy on validation data, or without such data on test data, or without either the
        lowest training loss; of methods with personal models it is their accuracy. Experiments in which a seed has
        diverged or exploded come last.
        """
        groups = group_runs(map(load_run, self.done))
        comparison = Comparison(
            {group.label: [read_complete(run.path) for run in group.runs] for group in groups},
            {group.label: [run.summary or {} for run in group.runs] for group in groups},
        )
        return sorted(comparison.table(), key=_worse_to_the_end)


def axis(text: str) -> Axis:
    """Read `section.key=value,value,...`; a range of integers is written first..last.

    >>> axis("method.mu=0.1,1").values, axis("seed=0..3").values
    (('0.1', '1'), ('0', '1', '2', '3'))
    """
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not all(value.strip() for value in values.split(",")):
        raise ConfigError(
            f"a grid must be given as section.key=value,value,... or section.key=first..last; got {text!r}"
        )
    found: list[str] = []
    for value in map(str.strip, values.split(",")):
        ends = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", value)
        if ends is None:
            found.append(value)
            continue
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise ConfigError(f"a range must be first..last with last >= first; got {value!r} in {text!r}")
        found += [str(number) for number in range(first, last + 1)]
    return Axis(key.strip(), tuple(dict.fromkeys(found)))


def grid(
    settings: Mapping[str, Any], axes: Sequence[Axis], out: Path, objects: Mapping[str, Any] | None = None
) -> list[Job]:
    """Return one job for each combination; every config is checked, and every folder that is there, before any runs.

    `objects` are those of `fedprox.train`, for all runs.
    """
    keys = [each.key for each in axes]
    if repeated := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"a setting must be given once in a grid; got `{repeated[0]}` twice")
    jobs = []
    for values in itertools.product(*(each.values for each in axes)):
        point = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        config = Config.from_dict(with_overrides(settings, point))
        name = ", ".join(point)
        folder = out / (re.sub(r"[^A-Za-z0-9.=,_-]+", "-", ",".join(point)) or "run")
        check_job_continues(folder, config, objects or {})
        jobs.append(Job(name or config.method.name, config, folder, resume=True, objects=objects or {}))
    check_apart(jobs)
    return jobs


def sweep(
    config: Config | Mapping[str, Any] | str | Path,
    axes: Sequence[str] | Mapping[str, Iterable[Any]],
    *,
    out: str | Path,
    workers: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
    **objects: Any,
) -> Sweep:
    """Run every combination of some settings, with run folders in `out`.

    Args:
      config: what the grid is laid over, as `fedprox.train` takes it.
      axes: as `axis` reads them, such as "method.mu=0.1,1", or a dict: {"method.mu": [0.1, 1], "seed": range(3)}.
      out: the folder for the runs; finished ones in it are left alone, others continued.
      workers: on how many cores (0: all).
      on_event: called with the progress of every run.
      objects: `population`, `model`, `method` and other objects, as `fedprox.train` takes them. Runs with objects run
        in this process, one after another.
    """
    check_counts(workers=(workers, 0))
    check_out(out, needed=True)
    jobs = grid(load_settings(config), _axes(axes), Path(out), named_objects(objects))
    result = run_grid(jobs, workers=workers, on_event=on_event)
    if jobs and not result.done and not isinstance(error := failure(result.failed, len(jobs)), RunError):
        raise error  # no run was possible at all
    return result


def _axes(axes: Sequence[str] | Mapping[str, Iterable[Any]]) -> list[Axis]:
    if isinstance(axes, str) or not isinstance(axes, Iterable):
        raise ConfigError(
            f"`axes` must be a list such as ['method.mu=0.1,1'], or a dict such as {{'method.mu': [0.1, 1]}}; got "
            f"{short(axes)}"
        )
    if not isinstance(axes, Mapping):
        return [axis(text) for text in axes]
    return [Axis(key, _written(key, values)) for key, values in axes.items()]


def _written(key: str, values: Iterable[Any]) -> tuple[str, ...]:
    """Return the values of an axis as they are written in a config."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise ConfigError(f"`axes` must hold a list of values for each key; got {short(values)} for {key!r}")
    found = [value.item() if isinstance(value, np.generic) else value for value in values]
    for value in found:
        if not isinstance(value, (bool, int, float, str, list, tuple, Mapping)):
            raise ConfigError(
                f"`axes` must hold values of settings: numbers, text and lists; got {type(value).__name__} for {key!r}"
            )
    if not found:
        raise ConfigError(f"`axes` must hold at least one value for each key; got none for {key!r}")
    return tuple(value if isinstance(value, str) else toml_value(value) for value in found)


def run_grid(jobs: Sequence[Job], *, workers: int = 0, on_event: Callable[[Event], None] = lambda event: None) -> Sweep:
    """Run the jobs that are not complete yet."""
    todo = [job for job in jobs if not is_complete(job)]
    ended = run_jobs(todo, workers=workers, on_event=on_event)
    failed = [end for end in ended if end.error is not None]
    lost = {end.job.out for end in failed}
    return Sweep([job.out for job in jobs if job.out not in lost], failed, len(jobs) - len(todo))


def _worse_to_the_end(row: Mapping[str, Any]) -> tuple[bool, float, float]:
    loss = math.inf if row["train_loss"] is None else row["train_loss"]
    accuracy = next((row[name] for name in BEST_BY if row.get(name) is not None), None)
    failed = loss == math.inf or row["diverged"] > 0 or row["exploded"] > 0
    return failed, 0.0 if accuracy is None else -accuracy, loss
