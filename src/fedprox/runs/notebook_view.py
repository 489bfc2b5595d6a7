"""The view of a run in a notebook: its outcome in words, and its curves as inline SVG in the page's colours."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from fedprox.runs.history import History
from fedprox.runs.summary_text import summary_lines

__all__ = ["curve_svg", "run_html"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 360, 170, 46, 24, 24


def run_html(history: History, summary: Mapping[str, Any] | None) -> str:
    """Return a run as HTML: its outcome, training loss and test accuracy over the rounds."""
    lines = summary_lines(summary) if summary is not None else ["not ended"]
    words = "".join(f"<div>{html.escape(text)}</div>" for text in lines)
    rounds = history.column("round")
    panels = [
        curve_svg(rounds, history.column(name), title)
        for name, title in (("train_loss", "training loss"), ("test_accuracy", "test accuracy"))
        if any(value is not None for value in history.column(name))
    ]
    return f'<div style="font-family:system-ui,sans-serif">{words}<div>{"".join(panels)}</div></div>'


def curve_svg(rounds: Sequence[int], values: Sequence[float | None], title: str) -> str:
    """Return a curve as SVG; where a value is missing the line is broken."""
    finite = [value for value in values if value is not None]
    low, high = min(finite), max(finite)
    span, last = high - low or 1.0, max(rounds[-1], 1)
    right, floor = _WIDTH - 8, _HEIGHT - _BOTTOM

    def point(round: int, value: float) -> str:
        x = _LEFT + (right - _LEFT) * round / last
        y = floor - (floor - _TOP) * (value - low) / span
        return f"{x:.1f},{y:.1f}"

    pieces, pen = [], "M"
    for round, value in zip(rounds, values, strict=True):
        if value is None:
            pen = "M"
            continue
        pieces.append(pen + point(round, value))
        pen = "L"
    labels = [
        (_LEFT - 6, floor, "end", f"{low:.3g}"),
        (_LEFT - 6, _TOP + 8, "end", f"{high:.3g}"),
        (_LEFT, _HEIGHT - 8, "start", "0"),
        (right, _HEIGHT - 8, "end", f"round {rounds[-1]}"),
        (_LEFT, 14, "start", title),
    ]
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" fill="currentColor">{html.escape(text)}</text>'
        for x, y, anchor, text in labels
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}">{texts}'
        f'<path d="M{_LEFT},{_TOP}L{_LEFT},{floor}L{right},{floor}" fill="none" stroke="currentColor" opacity="0.3"/>'
        f'<path d="{"".join(pieces)}" fill="none" stroke="#0072B2" stroke-width="2"/></svg>'
    )
