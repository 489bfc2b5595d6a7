"""Figures that look like the paper's: the same panels, order, labels and lines, with bands over seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from fedprox.paper.experiments import Experiment, Panel
from fedprox.paper.protocol import DATASETS, FRAME_COLOUR, MEASURES, Style
from fedprox.paper.series import Place, Series, panel_series, places
from fedprox.paper.sources import Source

__all__ = ["collect_notes", "plot_experiment"]


def plot_experiment(experiment: Experiment, series: Mapping[Place, Series], notes: Sequence[str]) -> Figure:
    """Draw a figure: means over seeds, with bands of one standard deviation."""
    rows, columns = len(experiment.rows), len(experiment.rows[0])
    figure = Figure(figsize=(3.6 * columns + 0.6, 2.6 * rows + 1.2), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, panels in enumerate(experiment.rows):
        for axes, panel in zip(grid[number], panels, strict=True):
            _draw_panel(axes, panel, panel_series(panel, experiment.row_name(number), series))
            if number == 0:
                axes.set_title(panel.title, fontweight="bold")
            if number == rows - 1:
                axes.set_xlabel("# Rounds")
        name = experiment.row_names[number] + "\n" if experiment.row_names else ""
        grid[number][0].set_ylabel(name + MEASURES[panels[0].measure])
    _add_legend(figure, experiment)
    width = 44 * columns
    figure.supxlabel("\n".join(textwrap.wrap(" ".join(notes), width)), fontsize=8, color="0.35")
    return figure


def collect_notes(experiment: Experiment, series: Mapping[Place, Series], sources: Mapping[str, Source]) -> list[str]:
    """Return the caption of a figure: how many seeds, and every reduction of a data set that it shows."""
    datasets = experiment.datasets
    seeds = {name: sources[name].seeds for name in datasets if name in sources}
    usual = max(seeds.values())
    fewer = [f"{DATASETS[name].title} {count}" for name, count in seeds.items() if count != usual]
    notes = [f"Means and one standard deviation over {usual} seeds" + (f" ({', '.join(fewer)})." if fewer else ".")]
    notes += [sources[name].reduction for name in datasets if name in sources and sources[name].reduction]
    if _same_without_stragglers(experiment):
        notes.append("At 0% stragglers FedAvg drops no device and is FedProx with mu = 0: one curve stands for both.")
    missing = {
        curve
        for place, _, _, curve in places(experiment)
        if place not in series or series[place].seeds < seeds.get(curve.dataset, 0)
    }
    if missing:
        notes.append(f"{len(missing)} of {len(experiment.curves)} curves lack runs.")
    return notes


def _same_without_stragglers(experiment: Experiment) -> bool:
    """Return whether a panel without stragglers shows FedAvg and FedProx with mu = 0, one hiding the other."""
    for panel in (panel for row in experiment.rows for panel in row):
        curves = {curve for _, curve in panel.curves}
        if any(
            curve.method == "fedavg" and curve.stragglers == 0 and replace(curve, method="fedprox", mu=0.0) in curves
            for curve in curves
        ):
            return True
    return False


def _draw_panel(axes: Any, panel: Panel, shown: Sequence[tuple[Style, Series]]) -> None:
    initial = 0.0
    for style, (_, band) in shown:
        axes.plot(band.rounds, band.mean, style.line, color=style.colour, label=style.label, linewidth=2.0)
        if band.deviation is not None:
            low, high = band.mean - band.deviation, band.mean + band.deviation
            axes.fill_between(band.rounds, low, high, color=style.colour, alpha=0.18, linewidth=0)
        initial = max(initial, float(band.mean[0]))
        axes.set_xlim(0, band.rounds[-1])
    if panel.measure == "train_loss" and initial:  # a method that diverges must not hide the others
        axes.set_ylim(max(axes.get_ylim()[0], 0.0), min(axes.get_ylim()[1], 2 * initial))
    axes.tick_params(color=FRAME_COLOUR)
    for spine in axes.spines.values():
        spine.set_color(FRAME_COLOUR)
    if not axes.lines:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color="0.5")


def _add_legend(figure: Figure, experiment: Experiment) -> None:
    from matplotlib.lines import Line2D

    styles = dict.fromkeys(style for row in experiment.rows for panel in row for style, _ in panel.curves)
    looks: list[dict[str, Any]] = [{"color": style.colour, "linestyle": style.line} for style in styles]
    lines = [Line2D([], [], linewidth=2.0, **look) for look in looks]
    figure.legend(
        lines,
        [style.label for style in styles],
        loc="outside upper center",
        ncols=min(len(lines), 4),
        frameon=False,
        prop={"weight": "bold"},
    )
