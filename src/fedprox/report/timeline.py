"""The time line of a run on the simulated clock: which device worked when, on which version of the model.

A bar is a device at work, from the moment it was asked until its reply arrived or the server stopped waiting. Its end
is coloured by the version that it was given. Of long runs the beginning is drawn.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedprox.report.figures import Figure
from fedprox.runs.history import History
from fedprox.runs.seed_groups import Group

__all__ = ["timeline_figures"]

_MOST_BARS, _MOST_RUNS = 400, 6  # more cannot be distinguished
_MERGED, _LOST = "#7F7F7F", "#D55E00"


class _Bar(NamedTuple):
    device: int
    begin: float
    end: float
    version: int
    staleness: int
    merged: bool


def timeline_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the time line of the first seed of each group that has a simulated clock."""
    figures = []
    for index, group in enumerate(groups[:_MOST_RUNS]):
        bars = _bars(group.runs[0].devices)
        if bars:
            figures.append(_figure(f"timeline_{index}", group.label, bars))
    return figures


def _bars(rounds: History) -> list[_Bar]:
    bars: list[_Bar] = []
    for row in rounds:
        if "start" not in row or "seconds" not in row or len(bars) >= _MOST_BARS:
            break
        count = len(row["device"])
        begins = row.get("asked_at", [row["start"]] * count)
        versions = row.get("version", [row["round"] - 1] * count)
        staleness = row.get("staleness", [0] * count)
        columns = zip(row["device"], begins, row["seconds"], versions, staleness, row["kept"], strict=True)
        bars += [_Bar(device, begin, begin + took, *rest) for device, begin, took, *rest in columns]
    return bars[:_MOST_BARS]


def _figure(name: str, label: str, bars: Sequence[_Bar]) -> Figure:
    traces = [_lines(bars, merged) for merged in (True, False)]
    ends: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": "version",
        "showlegend": False,
        "x": [_short(bar.end) for bar in bars],
        "y": [bar.device for bar in bars],
        "marker": {
            "size": 6,
            "color": [bar.version for bar in bars],
            "colorscale": "Viridis",
            "colorbar": {"title": {"text": "version"}, "tickformat": "d"},
            "symbol": ["circle" if bar.merged else "x" for bar in bars],
        },
        "text": [
            f"device {bar.device}, version {bar.version}, "
            + (f"staleness {bar.staleness}" if bar.merged else "not merged")
            for bar in bars
        ],
        "hovertemplate": "%{text}<br>until %{x} s<extra></extra>",
    }
    layout: Figure = {
        "xaxis": {"title": {"text": "simulated seconds"}},
        "yaxis": {"title": {"text": "device"}, "tickformat": "d"},
        "hovermode": "closest",
    }
    title = f"Time line: {html.escape(label)}"
    return {"name": name, "title": title, "data": [*(trace for trace in traces if trace["x"]), ends], "layout": layout}


def _lines(bars: Iterable[_Bar], merged: bool) -> Figure:
    chosen = [bar for bar in bars if bar.merged == merged]
    x: list[Any] = [each for bar in chosen for each in (_short(bar.begin), _short(bar.end), None)]
    y: list[Any] = [each for bar in chosen for each in (bar.device, bar.device, None)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "merged" if merged else "lost",
        "x": x,
        "y": y,
        "line": {"color": _MERGED if merged else _LOST, "width": 3},
        "hoverinfo": "skip",
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
