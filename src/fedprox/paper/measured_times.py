"""How long runs took: those that are finished here or on record, and those behind the published figures.

`published_seconds.json` has the seconds of each run behind the figures of the documentation, under the name of its run
folder, which identifies its config; `python -m fedprox.paper.measured_times docs/paper` writes it again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.core.files import write_atomically
from fedprox.experiments.scheduler import Job
from fedprox.paper.runs import Setting, finished_folder
from fedprox.runs.folder import read_summary

__all__ = ["Measured", "collect_published", "measure_times"]

_PUBLISHED = "published_seconds.json"


class Measured(NamedTuple):
    """The seconds of those runs whose time is known, and how many they are."""

    seconds: float
    runs: int


def measure_times(jobs: Iterable[Job], setting: Setting) -> Measured:
    """Return how long these runs took, as far as it is known."""
    known = [seconds for job in jobs if (seconds := _seconds(job, setting)) is not None]
    return Measured(sum(known), len(known))


def collect_published(figures: Path, known: Mapping[str, float]) -> dict[str, Any]:
    """Return the seconds of the runs behind the figures of a folder, and the machine that they were measured on.

    Args:
      known: the seconds of runs behind earlier figures, perhaps of another scale, which stay known.
    """
    records = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(figures.glob("figure*.json"))]
    seconds = {run["folder"]: run["seconds"] for record in records for run in record["runs"]}
    return {"machine": records[0]["machine"], "seconds": dict(sorted({**known, **seconds}.items()))}


def _seconds(job: Job, setting: Setting) -> float | None:
    folder = finished_folder(job, setting)
    summary = read_summary(folder) if folder is not None else None
    return summary["seconds"] if summary is not None else _published().get(job.out.name)


@cache
def _published() -> Mapping[str, float]:
    text = (files("fedprox.paper") / _PUBLISHED).read_text(encoding="utf-8")
    seconds: dict[str, float] = json.loads(text)["seconds"]
    return seconds


if __name__ == "__main__":
    content = json.dumps(collect_published(Path(sys.argv[1]), _published()), indent=0)
    write_atomically(Path(__file__).parent / _PUBLISHED, content.encode() + b"\n")
