"""The outcome of a run in words, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["number", "percent", "summary_lines"]


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the outcome of one run in words."""
    result = summary["result"]
    lines = [
        f"{summary['ended']} after {summary['rounds']} rounds, {summary['seconds']:.1f} s: "
        f"train loss {number(result['train_loss'], '.4f')}, train accuracy {percent(result['train_accuracy'])}, "
        f"test accuracy {percent(result['test_accuracy'])}"
    ]
    if "simulated_seconds" in summary:
        lines.append(f"simulated: {summary['simulated_seconds']:,.0f} s, {summary['bytes']:,} bytes sent")
    if summary["diverged_round"] is not None:
        lines.append(f"diverged at round {summary['diverged_round']}")
    if summary["not_finite_since"] is not None:
        lines.append(f"the loss is not a finite number since round {summary['not_finite_since']} (null in the records)")
    if summary["converged_round"] is not None:
        lines.append(f"converged at round {summary['converged_round']}")
    return lines


def number(value: float | None, form: str) -> str:
    """Return a number as text, a dash where there is none."""
    return "-" if value is None else format(value, form)


def percent(value: float | None) -> str:
    """Return a share as text, a dash where there is none."""
    return "-" if value is None else f"{100 * value:.1f}%"
