"""Time to a target accuracy: what each group of runs needs to reach a test accuracy that all of them reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedprox.report.page import table
from fedprox.runs.reader import SavedRun
from fedprox.runs.seed_groups import Group

__all__ = ["TargetRow", "common_target", "target_rows", "target_section"]


class TargetRow(NamedTuple):
    """What a group of runs needs, as means over its seeds."""

    label: str
    seconds: float
    bytes: float
    wasted_seconds: float
    rounds: float


def common_target(groups: Sequence[Group]) -> float | None:
    """Return the highest whole percentage of test accuracy that every run reaches; None where there is none.

    The model at the start does not count.
    """
    best = [max((_accuracy(row) for row in run.history[1:]), default=0.0) for group in groups for run in group.runs]
    percent = math.floor(100 * min(best, default=0.0) + 1e-9)
    return percent / 100 if percent > 0 else None


def target_rows(groups: Sequence[Group], target: float) -> list[TargetRow]:
    """Return what each group needs to reach a test accuracy that all of its runs reach."""
    rows = []
    for group in groups:
        reached = [_first(run, target) for run in group.runs]
        names = ("simulated_seconds", "bytes", "wasted_seconds", "round")
        rows.append(
            TargetRow(group.label, *(statistics.fmean(row.get(name, 0.0) for row in reached) for name in names))
        )
    return rows


def target_section(groups: Sequence[Group]) -> str:
    """Return the section; empty where not all runs have a simulated clock, or no accuracy is common to them."""
    if not all("simulated_seconds" in run.last for group in groups for run in group.runs):
        return ""
    target = common_target(groups)
    if target is None:
        return ""
    rows = [
        [
            row.label,
            f"{row.seconds:,.0f}",
            f"{row.bytes / 1e6:,.2f}",
            f"{row.wasted_seconds:,.0f}",
            f"{row.rounds:,.0f}",
        ]
        for row in target_rows(groups, target)
    ]
    headings = ["method", "simulated seconds", "MB sent", "wasted device-seconds", "versions"]
    note = '<p class="note">The highest whole percentage that every run reaches; means over the seeds.</p>'
    return f"<h2>Time to {target:.0%} test accuracy</h2>" + note + table(headings, rows)


def _first(run: SavedRun, target: float) -> dict[str, Any]:
    return next(row for row in run.history[1:] if _accuracy(row) >= target)


def _accuracy(row: dict[str, Any]) -> float:
    value = row.get("test_accuracy")
    return 0.0 if value is None else float(value)
