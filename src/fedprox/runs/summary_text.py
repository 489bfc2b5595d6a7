"""The outcome of a run in words, and numbers as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["counted", "number", "outcome_text", "percent", "start_lines", "summary_lines"]


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the outcome of one run in words."""
    result = summary["result"]
    lines = [
        f"{summary['ended']} after {counted(summary['rounds'], 'round')}, {summary['seconds']:.1f} s: "
        f"train loss {number(result['train_loss'], '.4f')}, train accuracy {percent(result['train_accuracy'])}, "
        f"test accuracy {percent(result['test_accuracy'])}"
    ]
    if "simulated_seconds" in summary:
        lines.append(f"simulated: {summary['simulated_seconds']:,.0f} s, {summary['bytes']:,} bytes sent")
    if summary["diverged_round"] is not None:
        lines.append(f"diverged at round {summary['diverged_round']}")
    if summary.get("exploded_round") is not None:
        lines.append(f"exploded at round {summary['exploded_round']}: a loss above ten times the initial one, or none")
    if summary["not_finite_since"] is not None:
        lines.append(f"the loss is not a finite number since round {summary['not_finite_since']} (null in the records)")
    if summary["converged_round"] is not None:
        lines.append(f"converged at round {summary['converged_round']}")
    return lines


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one.

    >>> counted(1, "round"), counted(2000, "device")
    ('1 round', '2,000 devices')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def start_lines(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the result of the untrained model, if it was measured.

    >>> start_lines([{"round": 0, "train_loss": 1.25, "test_accuracy": 0.25}])
    ['before training: train loss 1.2500, test accuracy 25.0%']
    """
    if not history or history[0]["round"] != 0:
        return []
    first = history[0]
    values = f"train loss {number(first['train_loss'], '.4f')}, test accuracy {percent(first['test_accuracy'])}"
    return [f"before training: {values}"]


def outcome_text(history: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None) -> str:
    """Return the outcome of a run in a few words.

    >>> outcome_text([{"round": 2, "train_loss": 0.5, "test_accuracy": 0.25}], None)
    'not ended, round 2: train loss 0.5000, test accuracy 25.0%'
    """
    if not history:
        return "no round measured yet"
    last = history[-1]
    state = "not ended" if summary is None else summary["ended"]
    values = f"train loss {number(last['train_loss'], '.4f')}, test accuracy {percent(last['test_accuracy'])}"
    return f"{state}, round {last['round']}: {values}"


def number(value: float | None, form: str) -> str:
    """Return a number as text, a dash where there is none."""
    return "-" if value is None else format(value, form)


def percent(value: float | None) -> str:
    """Return a share as text, a dash where there is none."""
    return "-" if value is None else f"{100 * value:.1f}%"
