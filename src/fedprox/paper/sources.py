"""Where the numbers of a data set come from: its scale and sizes, the code that read its runs, and the machine.

The panels of one figure may have been made at different times and scales, so each data set has a source of its own.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedprox.core.reading import reading
from fedprox.paper.experiments import Experiment
from fedprox.paper.protocol import DATASETS
from fedprox.paper.provenance import commit, machine, versions
from fedprox.paper.results import Results
from fedprox.paper.runs import config_hash

__all__ = ["Source", "collect_runs", "collect_sources", "read_record", "read_sources", "source_records"]


@dataclass(frozen=True)
class Source:
    """Where the numbers of a data set come from.

    Attributes:
      devices: how many devices there are; None where nothing was run, as for `rounds`.
      seeds: the seeds of each curve.
      reduction: what is smaller than in the paper, in words.
      commit: that of the code which read the runs.
    """

    scale: str
    devices: int | None
    rounds: int | None
    seeds: int
    reduction: str
    commit: str | None
    date: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]


def collect_sources(experiments: Iterable[Experiment], results: Results, datasets: Container[str]) -> dict[str, Source]:
    """Return the source of each data set of these figures whose runs are at hand."""
    setting, found = results.setting, {}
    curves = list(dict.fromkeys(curve for experiment in experiments for curve in experiment.curves))
    code, now = commit(), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    for name in DATASETS:
        own = [curve for curve in curves if curve.dataset == name]
        if not own or name not in datasets:
            continue
        runs = [run for curve in own for run in results.runs(curve)]
        summaries = [run.summary or {} for run in runs]
        found[name] = Source(
            setting.scale.name,
            max((summary["devices"] for summary in summaries), default=None),
            max((summary["rounds"] for summary in summaries), default=None),
            len(setting.seeds_for(name)),
            results.reductions.get(name, ""),
            code,
            now,
            machine(),
            versions(),
        )
    return found


def collect_runs(experiment: Experiment, results: Results, datasets: Container[str]) -> list[dict[str, Any]]:
    """Return the runs behind the panels of some data sets, each with the hash of its config."""
    curves = [curve for curve in experiment.curves if curve.dataset in datasets]
    runs = {run.path: (curve.dataset, run) for curve in curves for run in results.runs(curve)}
    return [
        {
            "dataset": dataset,
            "folder": run.path.name,
            "config": config_hash(run.config),
            "seed": run.seed,
            "seconds": round((run.summary or {})["seconds"], 1),
        }
        for dataset, run in runs.values()
    ]


def source_records(sources: Mapping[str, Source]) -> dict[str, Any]:
    """Return sources as JSON values, in the order of the data sets."""
    return {name: asdict(sources[name]) for name in DATASETS if name in sources}


def read_record(file: Path) -> dict[str, Any]:
    """Return a JSON record that lies beside figures; empty where there is none."""
    if not file.exists():
        return {}
    with reading(file, "the record of a figure"):
        record = json.loads(file.read_text(encoding="utf-8"))
        read_sources(record)
        return dict(record)


def read_sources(record: Mapping[str, Any]) -> dict[str, Source]:
    """Return the sources in a record."""
    return {name: Source(**source) for name, source in record.get("datasets", {}).items()}
