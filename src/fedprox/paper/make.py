"""From a name to files: run what is missing, then write the table, the figures and the page of results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedprox.core.errors import ConfigError, RunFolderError, nearest
from fedprox.core.files import write_atomically
from fedprox.experiments.scheduler import Event, Job
from fedprox.paper.experiments import EXPERIMENTS
from fedprox.paper.figure_files import write_figure
from fedprox.paper.gathered import CLAIMS_FILE, check_replaced, gather_all, read_gathered, write_gathered
from fedprox.paper.headline import headline_lines
from fedprox.paper.measured_times import measure_times
from fedprox.paper.protocol import DATASETS
from fedprox.paper.provenance import file_record
from fedprox.paper.results import Results
from fedprox.paper.results_page import results_page
from fedprox.paper.runs import Setting, build_jobs, expected_seconds, finished_folder, run_missing
from fedprox.paper.tables import csv_text, read_table1, table1, table1_lines

__all__ = ["TABLE", "Made", "check_datasets", "list_names", "make", "overview"]

TABLE = "table1"
_HEADLINE = "figure7"


@dataclass(frozen=True)
class Made:
    """The outcome: how many runs were made, messages, and the files."""

    runs: int
    lines: list[str]
    files: list[Path]


def list_names(name: str) -> list[str]:
    """Return the table and figures that a name on the command line stands for.

    >>> list_names("figure3"), len(list_names("all"))
    (['figure3'], 13)
    """
    every = [TABLE, *EXPERIMENTS]
    if name == "all":
        return every
    if name not in every:
        raise ConfigError(f"NAME must be list, all or one of {', '.join(every)}; got {name!r}" + nearest(name, every))
    return [name]


def check_datasets(names: Sequence[str]) -> None:
    """Refuse a data set that is not the paper's."""
    for name in names:
        if name not in DATASETS:
            raise ConfigError(
                f"`--only` must be data sets of {', '.join(DATASETS)}; got {name!r}" + nearest(name, DATASETS)
            )


def make(
    names: Sequence[str],
    setting: Setting,
    *,
    figures: Path | None = None,
    page: Path | None = None,
    workers: int = 0,
    only: Sequence[str] = (),
    only_draw: bool = False,
    on_start: Callable[[Sequence[Job], int], None] = lambda todo, done: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Made:
    """Make tables and figures, running what is missing; all of them together also make the page of results.

    Args:
      figures: the folder for tables and figures; by default that of the experiments. Together with `only` the panels
        of these data sets are replaced in the figures that are there, and claims judged by what is kept beside them.
      page: the file for the page of results; by default results.md beside the figures.
      only: run what these data sets need, and without `figures` make nothing of it yet; empty: all of them.
      only_draw: run nothing, and draw from the runs that are there.
    """
    chosen = [EXPERIMENTS[name] for name in names if name in EXPERIMENTS]
    curves = list(dict.fromkeys(curve for experiment in chosen for curve in experiment.curves))
    check_datasets(only)
    replaced = list(only) if figures is not None else []
    check_replaced(replaced)
    curves = [curve for curve in curves if not only or curve.dataset in only]
    runs = 0
    if not only_draw:
        runs = run_missing(curves, setting, workers=workers, on_start=on_start, on_event=on_event)
    if only and not only_draw and not replaced:
        return Made(runs, [f"the runs on {', '.join(only)} are done; --only-draw makes the figures"], [])
    folder = figures or setting.out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"the folder for figures {folder} cannot be written: {error.strerror}") from None
    results = Results(setting)
    lines: list[str] = []
    files: list[Path] = []
    table = _table1(folder, replaced) if TABLE in names else []
    if table:
        lines += table1_lines(table)
        files.append(_write(folder / f"{TABLE}.csv", csv_text(table, [])))
        files.append(_write(folder / f"{TABLE}.json", json.dumps(file_record(TABLE), indent=1) + "\n"))
    for experiment in chosen:
        if not replaced or set(replaced) & set(experiment.datasets):
            files += write_figure(experiment, results, folder, replaced)
    is_all = len(names) == len(list_names("all"))
    if is_all or _HEADLINE in names:
        stored = read_gathered(folder / CLAIMS_FILE) if replaced else None
        gathered = gather_all(results, replaced, stored)
        lines += headline_lines(gathered.improvements)
    if is_all:
        files.append(write_gathered(folder / CLAIMS_FILE, gathered))
        file = page or folder / "results.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        place = os.path.relpath(folder.resolve(), file.parent.resolve())
        files.append(_write(file, results_page(gathered, table, place)))
    return Made(runs, lines, files)


def overview(setting: Setting) -> list[dict[str, Any]]:
    """Return for each experiment how many runs it needs, how many of them are left, and how long runs take.

    `core_seconds` is the estimate for those that are left; `measured_seconds` is what was measured, here or for the
    published figures, for `measured_runs` of all.
    """
    none = {"runs": 0, "left": 0, "core_seconds": 0, "measured_runs": 0, "measured_seconds": 0.0}
    rows: list[dict[str, Any]] = [{"name": TABLE, "about": "statistics of the four real data sets", **none}]
    every = [curve for experiment in EXPERIMENTS.values() for curve in experiment.curves]
    jobs_of = {curve: build_jobs([curve], setting) for curve in every}
    for name, about, curves in (
        *((each.name, each.about, each.curves) for each in EXPERIMENTS.values()),
        ("all", "table and figures, runs they share once, and a page with a verdict on each claim", every),
    ):
        jobs = list({job.out: job for curve in curves for job in jobs_of[curve]}.values())
        left = [job for job in jobs if finished_folder(job, setting) is None]
        seconds = sum(expected_seconds(job, setting.scale) for job in left)
        measured = measure_times(jobs, setting)
        rows.append(
            {
                "name": name,
                "about": about,
                "runs": len(jobs),
                "left": len(left),
                "core_seconds": seconds,
                "measured_runs": measured.runs,
                "measured_seconds": measured.seconds,
            }
        )
    return rows


def _table1(folder: Path, replaced: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of Table 1; those of data sets that are not replaced are kept."""
    kept = {row["dataset"]: row for row in read_table1(folder / f"{TABLE}.csv")} if replaced else {}
    new = {DATASETS[name].title for name in replaced}
    return [row if row["dataset"] in new else kept.get(row["dataset"], row) for row in table1()]


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text.encode())
    return path
