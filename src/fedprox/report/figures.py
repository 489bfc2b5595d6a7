"""The figures of a report, as Plotly figures in plain dicts (data and layout without the colours of the page)."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedprox.core.metric_columns import own_columns
from fedprox.report.palette import COLOURS
from fedprox.runs.curve_axis import BYTES, SECONDS, WASTED, on_axis
from fedprox.runs.seed_groups import Group

__all__ = [
    "Figure",
    "axis_figures",
    "curve_figures",
    "fairness_figure",
    "fairness_rows",
    "short",
    "style",
    "time_figure",
]

Figure = dict[str, Any]

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_POINTS = 1500  # per curve; more cannot be seen

_CURVES = (
    ("train_loss", "Training loss", "loss"),
    ("test_accuracy", "Test accuracy", "accuracy"),
    ("train_accuracy", "Training accuracy", "accuracy"),
    ("dissimilarity", "Dissimilarity B(w)", "B"),
    ("gradient_variance", "Variance of the devices' gradients", "variance"),
    ("gamma_mean", "Inexactness gamma, mean over devices", "gamma"),
    ("gamma_max", "Inexactness gamma, largest", "gamma"),
    ("epsilon", "Privacy loss epsilon", "epsilon"),
    ("mu", "Proximal coefficient mu", "mu"),
    ("learning_rate", "Learning rate", "learning rate"),
    ("staleness_mean", "Staleness of the merged replies, mean", "versions"),
    ("staleness_max", "Staleness of the merged replies, largest", "versions"),
)


def curve_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return one figure for each quantity that any run has measured over the rounds."""
    figures = []
    own = own_columns(row for group in groups for run in group.runs for row in run.history)
    for name, title, unit in (*_CURVES, *((name, name, name) for name in own)):
        bands = [(index, group.band(name)) for index, group in enumerate(groups)]
        traces = [
            trace
            for index, band in bands
            if band is not None
            for trace in _curve(index, groups[index].label, band.rounds, band.mean, band.deviation, unit)
        ]
        if traces:
            figures.append(_figure(name, title, traces, "round", unit))
    return figures


def axis_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return loss and accuracy over simulated seconds, over bytes where groups differ in them, and over lost work."""
    figures = []
    sent = {run.last["bytes"] for group in groups for run in group.runs if "bytes" in run.last}
    is_wasted = any(run.last.get("wasted_seconds") for group in groups for run in group.runs)
    for axis in (SECONDS, *((BYTES,) if len(sent) > 1 else ()), *((WASTED,) if is_wasted else ())):
        have = [
            (index, group) for index, group in enumerate(groups) if all(axis.column in run.last for run in group.runs)
        ]
        for name, title, unit in _CURVES[:2]:
            traces = []
            for index, group in have:
                x, values = on_axis([run.history for run in group.runs], axis, name)
                if not np.isnan(values).all():
                    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else None
                    traces += _curve(index, group.label, x.tolist(), values.mean(axis=0), deviation, unit, axis.label)
            if traces:
                figures.append(_figure(f"{name}_over_{axis.name}", title, traces, axis.label, unit))
    return figures


def time_figure(groups: Sequence[Group]) -> Figure:
    """Return the seconds that each round's local work took, of the first seed of each group."""
    traces = []
    for index, group in enumerate(groups):
        records = group.runs[0].devices
        seconds = np.array([row["solve_seconds"] for row in records], float)
        traces += _curve(index, group.label, [row["round"] for row in records], seconds, None, "s")
    return _figure("time", "Time per round, local work and merging", traces, "round", "s")


def fairness_figure(groups: Sequence[Group]) -> Figure | None:
    """Return the accuracy of devices in rising order: the left end shows the devices with the lowest."""
    traces = []
    for index, group in enumerate(groups):
        accuracies = _device_accuracies(group)
        if len(accuracies):
            share = np.linspace(0, 1, min(len(accuracies), 201))
            values = np.quantile(accuracies, share)
            look = style(index, group.label)
            hover = "%{x:.0%} of devices are at or below %{y:.1%}<extra>" + html.escape(group.label) + "</extra>"
            traces.append({**look, "x": short(share), "y": short(values), "hovertemplate": hover})
    if not traces:
        return None
    figure = _figure("fairness", "Accuracy of the devices, worst to best", traces, "share of devices", "accuracy")
    figure["layout"]["xaxis"]["tickformat"] = ".0%"
    return figure


def fairness_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return, for each group, mean, worst tenth and variance of the devices' test accuracies over all its seeds."""
    rows = []
    for group in groups:
        accuracies = np.sort(_device_accuracies(group))
        if len(accuracies):
            worst = accuracies[: max(1, math.ceil(len(accuracies) / 10))]
            rows.append(
                {
                    "label": group.label,
                    "devices": len(group.runs[0].evaluation),
                    "mean": float(accuracies.mean()),
                    "worst_tenth": float(worst.mean()),
                    "variance": float(accuracies.var()),
                }
            )
    return rows


def _device_accuracies(group: Group) -> np.ndarray[Any, Any]:
    """Return test accuracies, or training accuracies where there is no test data, of all devices and seeds."""
    rows = [row for run in group.runs for row in run.evaluation]
    for name in ("test_accuracy", "train_accuracy"):
        values = [row[name] for row in rows if row[name] is not None]
        if values:
            return np.array(values)
    return np.empty(0)


def _curve(
    index: int, label: str, over: Sequence[float], mean: Any, deviation: Any, unit: str, axis: str = "round"
) -> list[Figure]:
    """Return the traces of a curve and its band; they share a legend group, so one click hides both."""
    chosen = np.unique(np.linspace(0, len(over) - 1, min(len(over), _MOST_POINTS)).astype(int))
    x = [over[i] for i in chosen]
    mean = np.asarray(mean)[chosen]
    form = ".1%" if unit == "accuracy" else ".4g"
    name = html.escape(label)
    line = {
        **style(index, label),
        "x": x,
        "y": short(mean),
        "hovertemplate": f"{axis} %{{x}}: %{{y:{form}}}<extra>{name}</extra>",
    }
    if deviation is None:
        return [line]
    spread = np.asarray(deviation)[chosen]
    finite = np.isfinite(mean) & np.isfinite(spread)
    edges = np.concatenate([(mean + spread)[finite], (mean - spread)[finite][::-1]])
    forth = np.array(x)[finite]
    band = {
        "type": "scatter",
        "x": [*forth.tolist(), *forth[::-1].tolist()],
        "y": short(edges),
        "fill": "toself",
        "fillcolor": COLOURS[index % len(COLOURS)],
        "opacity": 0.18,
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "legendgroup": name,
        "showlegend": False,
    }
    return [band, line]


def style(index: int, label: str) -> Figure:
    """Return what distinguishes the curves of groups: name, colour and dashes."""
    name = html.escape(label)  # Plotly reads names as simple HTML
    dash = _DASHES[index % len(_DASHES)]  # so that curves also differ without colours
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "line": {"color": COLOURS[index % len(COLOURS)], "width": 2, "dash": dash},
    }


def _figure(name: str, title: str, traces: list[Figure], x: str, unit: str) -> Figure:
    layout: Figure = {"xaxis": {"title": {"text": x}}, "yaxis": {}}
    if x == "round":
        last = max((trace["x"][-1] for trace in traces if trace.get("x") and "fill" not in trace), default=0)
        layout["xaxis"] |= {"tickformat": "d"} | ({"dtick": 1} if last <= 10 else {})  # integer rounds only
    if unit == "accuracy":
        layout["yaxis"] |= {"tickformat": ".0%", "autorangeoptions": {"clipmin": 0, "clipmax": 1}}
    if unit == "s":
        layout["yaxis"] = {"title": {"text": "seconds"}, "rangemode": "tozero"}
    return {"name": name, "title": title, "data": traces, "layout": layout}


def short(values: Any) -> list[float | None]:
    """Return numbers with six digits, null where not finite: the page stays small."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values, float)]
