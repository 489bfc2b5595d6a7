"""Pictures of runs: training loss and test accuracy over rounds, simulated seconds or bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedprox.runs.curve_axis import ROUNDS, Axis, on_axis
from fedprox.runs.history import History

__all__ = ["curves", "save", "suite_curves"]

_PANELS = (("train_loss", "training loss"), ("test_accuracy", "test accuracy"))


def curves(histories: Mapping[str, Sequence[History]], title: str = "", axis: Axis = ROUNDS) -> Figure:
    """Draw each variant's mean over seeds, with a band of one standard deviation where there are several."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        _draw(axes, histories, name, axis, band=True)
        axes.set_xlabel(axis.label)
        axes.set_ylabel(label)
    figure.axes[0].legend(frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def suite_curves(
    suite: Mapping[float, Mapping[str, Sequence[History]]], title: str = "", axis: Axis = ROUNDS
) -> Figure:
    """Draw the means over seeds of a suite: a column for each share of stragglers, one legend for all.

    Losses above twice the initial one are cut off, so that a method that diverges does not hide the others.
    """
    figure = Figure(figsize=(4.2 * len(suite), 6.5), layout="constrained")
    panels = figure.subplots(2, len(suite), sharex=True, sharey="row", squeeze=False)
    for row, (name, label) in zip(panels, _PANELS, strict=True):
        for axes, (share, histories) in zip(row, suite.items(), strict=True):
            _draw(axes, histories, name, axis, band=False)
            axes.set_title(f"{share:.0%} stragglers", fontsize=10)
        row[0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel(axis.label)
    losses = panels[0][0]
    initial = max((line.get_ydata()[0] for line in losses.lines), default=np.inf)
    losses.set_ylim(top=min(losses.get_ylim()[1], 2 * initial))
    lines, labels = losses.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=5, frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a picture; the ending of the name says in which format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    return path


def _draw(axes: Any, histories: Mapping[str, Sequence[History]], name: str, axis: Axis, *, band: bool) -> None:
    for number, (variant, runs) in enumerate(histories.items()):
        x, values = on_axis(runs, axis, name)  # (points,), (seeds, points)
        mean = values.mean(axis=0)
        (line,) = axes.plot(x, mean, label=variant, color=f"C{number % 10}", linewidth=1.6)
        if band and len(runs) > 1:
            spread = values.std(axis=0, ddof=1)
            axes.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
