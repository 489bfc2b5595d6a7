"""Pictures of runs: training loss and test accuracy over rounds, simulated seconds or bytes.

Curves differ in colour and in line style, so that a picture also reads in print without colours.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedprox.core.errors import RunFolderError
from fedprox.report.palette import COLOURS
from fedprox.runs.curve_axis import ROUNDS, Axis, on_axis
from fedprox.runs.history import History

__all__ = ["Picture", "arranged", "curves", "run_picture", "save", "save_picture", "suite_curves"]

_PANELS = (("train_loss", "training loss"), ("test_accuracy", "test accuracy"))
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))


def curves(
    histories: Mapping[str, Sequence[History]], title: str = "", axis: Axis = ROUNDS, *, legend: bool = True
) -> Picture:
    """Plot each variant's mean over seeds, with a band of one standard deviation where there are several."""
    figure = Picture(figsize=(10, 4), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        _plot(axes, histories, name, axis, band=True)
        axes.set_xlabel(axis.label)
        axes.set_ylabel(label)
    if legend:
        figure.axes[0].legend(frameon=False, handlelength=3)
    if title:
        figure.suptitle(title)
    seeds = max((len(runs) for runs in histories.values()), default=1)
    if seeds > 1:
        note = f"lines: mean over {seeds} seeds; bands: one standard deviation on either side"
        figure.supxlabel(note, x=0.995, ha="right", fontsize=7, color="0.35")
    return figure


def suite_curves(
    suite: Mapping[float, Mapping[str, Sequence[History]]], title: str = "", axis: Axis = ROUNDS
) -> Figure:
    """Plot the means over seeds of a suite: a column for each share of stragglers, one legend for all.

    Losses above twice the initial one are cut off, so that a method that diverges does not hide the others.
    """
    figure = Figure(figsize=(4.2 * len(suite), 6.5), layout="constrained")
    panels = figure.subplots(2, len(suite), sharex=True, sharey="row", squeeze=False)
    for row, (name, label) in zip(panels, _PANELS, strict=True):
        for axes, (share, histories) in zip(row, suite.items(), strict=True):
            _plot(axes, histories, name, axis, band=False)
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


class Picture(Figure):
    """A figure that a notebook displays."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=100)
        return content.getvalue()


def run_picture(history: History, path: str | Path | None = None) -> Picture:
    """Return the picture of one run, and write it to `path` where one is given."""
    picture = curves({"run": [history]}, legend=False)
    if path is not None:
        save(picture, Path(path))
    return picture


def save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a picture in the format that the ending of its name gives, PNG without one, and return its path."""
    if path.is_dir():
        raise RunFolderError(f"picture {path} must be a file; it is a folder")
    if not path.suffix:
        path = path.with_name(f"{path.name}.png")
    if path.suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise RunFolderError(f"picture {path} must end in .png, .pdf, .svg or .jpg; got {path.suffix!r}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with arranged(figure):
            figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise RunFolderError(f"picture {path} cannot be written: {error.strerror}") from None
    return path


def save_picture(figure: Figure, folder: Path, name: str = "comparison") -> Path:
    """Write a figure as PNG, for the screen, and as PDF, for print; return the PNG."""
    with arranged(figure):
        save(figure, folder / f"{name}.pdf")
        return save(figure, folder / f"{name}.png")


@contextlib.contextmanager
def arranged(figure: Figure) -> Iterator[None]:
    """Lay a figure out now and not while it is written: Matplotlib then draws it once per file, not twice."""
    engine = figure.get_layout_engine()
    if engine is None:
        yield
        return
    engine.execute(figure)
    figure.set_layout_engine(None)
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


def _plot(axes: Any, histories: Mapping[str, Sequence[History]], name: str, axis: Axis, *, band: bool) -> None:
    for number, (variant, runs) in enumerate(histories.items()):
        x, values = on_axis(runs, axis, name)  # (points,), (seeds, points)
        mean = values.mean(axis=0)
        colour, line = COLOURS[number % len(COLOURS)], _LINES[number % len(_LINES)]
        axes.plot(x, mean, label=variant, color=colour, linestyle=line, linewidth=1.6)
        if band and len(runs) > 1:
            spread = values.std(axis=0, ddof=1)
            axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axis == ROUNDS:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))
    if name.endswith("accuracy"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, 0.0), min(top, 1.0))  # a band may reach further
