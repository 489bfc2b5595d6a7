"""The series that a figure shows: a mean over seeds with its deviation, for each curve of each panel.

They come from runs, or from the CSV file beside a figure that was drawn before.
"""

from __future__ import annotations

import csv
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedprox.core.reading import reading
from fedprox.paper.experiments import Curve, Experiment, Panel
from fedprox.paper.protocol import Style
from fedprox.paper.results import Results
from fedprox.runs.seed_groups import Band, Group

__all__ = ["Place", "Series", "collect_series", "panel_series", "places", "read_series", "series_rows"]


class Place(NamedTuple):
    """Where a series stands in a figure: its row, its panel, what is measured, and its curve."""

    row: str
    panel: str
    measure: str
    curve: str


class Series(NamedTuple):
    """Means over seeds."""

    seeds: int
    band: Band


def places(experiment: Experiment) -> Iterator[tuple[Place, Panel, Style, Curve]]:
    """Yield every curve of a figure with its place."""
    for number, panels in enumerate(experiment.rows):
        for panel in panels:
            for style, curve in panel.curves:
                yield Place(experiment.row_name(number), panel.title, panel.measure, style.label), panel, style, curve


def panel_series(panel: Panel, row: str, series: Mapping[Place, Series]) -> list[tuple[Style, Series]]:
    """Return what there is for the curves of a panel."""
    found = [(style, series.get(Place(row, panel.title, panel.measure, style.label))) for style, _ in panel.curves]
    return [(style, each) for style, each in found if each is not None]


def collect_series(experiment: Experiment, results: Results, datasets: Container[str]) -> dict[Place, Series]:
    """Return the series of some data sets, as far as they were run."""
    found = {}
    for place, panel, style, curve in places(experiment):
        runs = results.runs(curve) if curve.dataset in datasets else []
        band = Group(style.label, tuple(runs)).band(panel.measure) if runs else None
        if band is not None:
            found[place] = Series(len(runs), band)
    return found


def read_series(file: Path) -> dict[Place, Series]:
    """Return the series of a CSV file that `series_rows` was written to."""
    rows: dict[Place, list[dict[str, str]]] = {}
    with reading(file, "the table of a figure"):
        lines = file.read_text(encoding="utf-8").splitlines()
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            rows.setdefault(Place(row["row"], row["panel"], row["measure"], row["curve"]), []).append(row)
        return {place: Series(int(own[0]["seeds"]), _read_band(own)) for place, own in rows.items()}


def series_rows(experiment: Experiment, series: Mapping[Place, Series]) -> list[dict[str, Any]]:
    """Return one row per panel, curve and round: mean and standard deviation over seeds."""
    rows = []
    for place, *_ in places(experiment):
        if place not in series:
            continue
        seeds, band = series[place]
        deviations = [None] * len(band.rounds) if band.deviation is None else band.deviation.tolist()
        rows += [
            {**place._asdict(), "seeds": seeds, "round": round, "mean": _short(mean), "deviation": _short(deviation)}
            for round, mean, deviation in zip(band.rounds, band.mean.tolist(), deviations, strict=True)
        ]
    return rows


def _read_band(rows: list[dict[str, str]]) -> Band:
    mean, deviation = (np.array([float(row[key] or "nan") for row in rows]) for key in ("mean", "deviation"))
    return Band([int(row["round"]) for row in rows], mean, None if int(rows[0]["seeds"]) < 2 else deviation)


def _short(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.5g}")
