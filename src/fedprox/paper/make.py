"""From a name to files: run what is missing, then draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedprox.errors import ConfigError, nearest
from fedprox.paper.experiments import EXPERIMENTS
from fedprox.paper.runs import Setting, expected_seconds, is_complete, jobs_of, run_missing
from fedprox.scheduler import Event, Job

__all__ = ["Made", "make", "names_of", "overview"]

TABLE = "table1"


@dataclass(frozen=True)
class Made:
    """What came of it: how many runs were run, what there is to say, and the files."""

    runs: int
    lines: list[str]
    files: list[Path]


def names_of(name: str) -> list[str]:
    """Return the table and figures that a name on the command line stands for.

    >>> names_of("figure3"), len(names_of("all"))
    (['figure3'], 13)
    """
    every = [TABLE, *EXPERIMENTS]
    if name == "all":
        return every
    if name not in every:
        raise ConfigError(f"NAME must be list, all or one of {', '.join(every)}; got {name!r}" + nearest(name, every))
    return [name]


def make(
    names: Sequence[str],
    setting: Setting,
    *,
    workers: int = 0,
    on_start: Callable[[Sequence[Job], int], None] = lambda todo, done: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Made:
    """Make tables and figures, running what is missing."""
    chosen = [EXPERIMENTS[name] for name in names if name in EXPERIMENTS]
    curves = list(dict.fromkeys(curve for experiment in chosen for curve in experiment.curves))
    runs = run_missing(curves, setting, workers=workers, on_start=on_start, on_event=on_event)
    lines: list[str] = []
    files: list[Path] = []
    return Made(runs, lines, files)


def overview(setting: Setting) -> list[dict[str, Any]]:
    """Return for each experiment how many runs it needs, how many of them are left, and about how long those take."""
    rows = []
    for experiment in EXPERIMENTS.values():
        jobs = jobs_of(experiment.curves, setting)
        left = [job for job in jobs if not is_complete(job)]
        seconds = sum(expected_seconds(job, setting.scale) for job in left)
        rows.append(
            {
                "name": experiment.name,
                "about": experiment.about,
                "runs": len(jobs),
                "left": len(left),
                "core_seconds_left": round(seconds, 1),
            }
        )
    return rows
