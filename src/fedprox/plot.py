"""Pictures of runs: training loss and test accuracy over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedprox.history import History

__all__ = ["curves", "save"]

_PANELS = (("train_loss", "training loss"), ("test_accuracy", "test accuracy"))


def curves(histories: Mapping[str, Sequence[History]], title: str = "") -> Figure:
    """Draw each variant's mean over seeds, with a band of one standard deviation where there are several."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        for variant, runs in histories.items():
            rounds = runs[0].column("round")
            values = np.array([_numbers(run.column(name)) for run in runs])  # (seeds, rounds)
            mean = values.mean(axis=0)
            (line,) = axes.plot(rounds, mean, label=variant, linewidth=1.6)
            if len(runs) > 1:
                spread = values.std(axis=0, ddof=1)
                axes.fill_between(rounds, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set_xlabel("round")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write a picture; the ending of the name says in which format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _numbers(column: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in column], float)
