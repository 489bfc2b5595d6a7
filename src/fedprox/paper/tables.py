"""The numbers behind a figure as CSV, and Table 1 beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import DataError
from fedprox.data.table1 import PAPER, Statistics, statistics
from fedprox.paper.experiments import Experiment
from fedprox.paper.protocol import DATASETS
from fedprox.paper.results import Results
from fedprox.runs.seed_groups import Group

__all__ = ["csv_text", "figure_rows", "table1", "table1_lines"]


def figure_rows(experiment: Experiment, results: Results) -> list[dict[str, Any]]:
    """Return one row per panel, curve and round: mean and standard deviation over seeds."""
    rows = []
    for number, panels in enumerate(experiment.rows):
        for panel in panels:
            for style, curve in panel.curves:
                runs = results.runs(curve)
                band = Group(style.label, tuple(runs)).band(panel.measure) if runs else None
                if band is None:
                    continue
                deviations = [None] * len(band.rounds) if band.deviation is None else band.deviation.tolist()
                rows += [
                    {
                        "row": experiment.row_names[number] if experiment.row_names else number + 1,
                        "panel": panel.title,
                        "measure": panel.measure,
                        "curve": style.label,
                        "seeds": len(runs),
                        "round": round,
                        "mean": _short(mean),
                        "deviation": _short(deviation),
                    }
                    for round, mean, deviation in zip(band.rounds, band.mean.tolist(), deviations, strict=True)
                ]
    return rows


def csv_text(rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> str:
    """Return rows as CSV; the notes stand before them as comments.

    >>> print(csv_text([{"a": 1, "b": None}], ["Two rounds."]), end="")
    # Two rounds.
    a,b
    1,
    """
    text = io.StringIO()
    text.writelines(f"# {note}\n" for note in notes)
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def table1() -> list[dict[str, Any]]:
    """Return the paper's Table 1 beside the prepared data; without ours for data that are not prepared."""
    rows = []
    for name, paper in PAPER.items():
        try:
            population = data.load(Config.from_dict({"data": {"name": name}}))
        except DataError:
            ours = None
        else:
            ours = statistics(np.diff(population.train.offsets) + np.diff(population.test.offsets))
        rows.append({"dataset": DATASETS[name].title} | _columns("paper", paper) | _columns("ours", ours))
    return rows


def table1_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return Table 1 as Markdown."""
    lines = [
        "| Dataset | Devices | Samples | mean | stdev | Devices, paper | Samples, paper | mean, paper | stdev, paper |",
        "|---|" + "--:|" * 8,
    ]
    for row in rows:
        ours = [row[f"ours_{name}"] for name in _STATISTICS]
        paper = [row[f"paper_{name}"] for name in _STATISTICS]
        cells = ["not prepared" if value is None else f"{value:,}" for value in (*ours, *paper)]
        lines.append(f"| {row['dataset']} | {' | '.join(cells)} |")
    return lines


_STATISTICS = ("devices", "samples", "mean", "deviation")


def _columns(whose: str, found: Statistics | None) -> dict[str, Any]:
    return {f"{whose}_{name}": None if found is None else round(getattr(found, name)) for name in _STATISTICS}


def _short(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.5g}")
