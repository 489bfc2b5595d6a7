"""Tables as CSV, and Table 1 beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import DataError
from fedprox.core.reading import reading
from fedprox.data.table1 import PAPER, Statistics, statistics
from fedprox.paper.protocol import DATASETS

__all__ = ["csv_text", "read_table1", "table1", "table1_lines"]


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


def read_table1(file: Path) -> list[dict[str, Any]]:
    """Return Table 1 from a CSV file; no rows where there is none."""
    if not file.exists():
        return []
    with reading(file, "Table 1 as CSV"):
        rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
        return [
            {key: value if key == "dataset" else int(value) if value else None for key, value in row.items()}
            for row in rows
        ]


def table1_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
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
