"""The files of a figure: PDF and PNG, its numbers as CSV, and as JSON where they come from.

A figure that is there already can have the panels of some data sets replaced; the others are drawn again from its CSV
file, and keep their runs and sources in its JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from fedprox.core.files import write_atomically
from fedprox.paper.experiments import Experiment
from fedprox.paper.figures import collect_notes, plot_experiment
from fedprox.paper.protocol import DATASETS
from fedprox.paper.provenance import file_record
from fedprox.paper.results import Results
from fedprox.paper.series import Place, Series, collect_series, places, read_series, series_rows
from fedprox.paper.sources import collect_runs, collect_sources, read_record, read_sources, source_records
from fedprox.paper.tables import csv_text
from fedprox.report.plot import arranged, save

__all__ = ["write_figure"]


def write_figure(experiment: Experiment, results: Results, folder: Path, replaced: Collection[str] = ()) -> list[Path]:
    """Write a figure and the files that belong to it.

    Args:
      replaced: the data sets whose panels are drawn from runs, the others as they are in the folder; empty: all.
    """
    path, names = folder / experiment.name, replaced or DATASETS
    series, sources = collect_series(experiment, results, names), collect_sources([experiment], results, names)
    runs = collect_runs(experiment, results, names)
    if replaced:
        record = read_record(path.with_suffix(".json"))
        series = {**_kept_series(experiment, path.with_suffix(".csv"), replaced), **series}
        sources = {**read_sources(record), **sources}
        runs = [run for run in record.get("runs", []) if run["dataset"] not in replaced] + runs
    notes = collect_notes(experiment, series, sources)
    figure = plot_experiment(experiment, series, notes)
    with arranged(figure):
        files = [save(figure, path.with_suffix(".pdf")), save(figure, path.with_suffix(".png"), dpi=90)]
    table = csv_text(series_rows(experiment, series), notes)
    record = {
        **file_record(experiment.name),
        "scale": ", ".join(dict.fromkeys(sources[name].scale for name in DATASETS if name in sources)),
        "notes": notes,
        "datasets": source_records(sources),
        "runs": sorted(runs, key=lambda run: experiment.datasets.index(run["dataset"])),
    }
    return [
        *files,
        _write(path.with_suffix(".csv"), table),
        _write(path.with_suffix(".json"), json.dumps(record, indent=1) + "\n"),
    ]


def _kept_series(experiment: Experiment, file: Path, replaced: Collection[str]) -> dict[Place, Series]:
    """Return the series of the other data sets in a CSV file; none where there is no file."""
    stored: dict[Place, Series] = read_series(file) if file.exists() else {}
    others = {place for place, _, _, curve in places(experiment) if curve.dataset not in replaced}
    return {place: series for place, series in stored.items() if place in others}


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text.encode())
    return path
