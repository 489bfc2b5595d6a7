"""What a curve is drawn over: rounds, simulated seconds, bytes sent or device-seconds of work that was lost.

Runs measure at different times, so over seconds and bytes a curve is a staircase: its value at x is that of the last
measured round at or before x. Runs are compared as far as the shortest of them goes, and by when each first reaches a
loss that all of them reach.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import ConfigError, nearest
from fedprox.runs.history import History

__all__ = [
    "AXES",
    "BYTES",
    "ROUNDS",
    "SECONDS",
    "WASTED",
    "Axis",
    "common_end",
    "common_loss",
    "find_axis",
    "first_at",
    "on_axis",
    "value_at",
]


@dataclass(frozen=True)
class Axis:
    """An axis: its name on the command line, the column of `metrics.jsonl`, and its label in a figure."""

    name: str
    column: str
    label: str


ROUNDS = Axis("rounds", "round", "round")
SECONDS = Axis("seconds", "simulated_seconds", "simulated seconds")
BYTES = Axis("bytes", "bytes", "bytes sent, down and up")
WASTED = Axis("wasted", "wasted_seconds", "device-seconds of work that was lost")
AXES = (ROUNDS, SECONDS, BYTES, WASTED)


def find_axis(name: str) -> Axis:
    """Return the axis of a name.

    >>> find_axis("seconds").column
    'simulated_seconds'
    """
    for axis in AXES:
        if axis.name == name:
            return axis
    names = [axis.name for axis in AXES]
    raise ConfigError(f"`--x` must be one of {', '.join(names)}; got {name!r}" + nearest(name, names))


def value_at(history: History, axis: Axis, x: float, name: str) -> float | None:
    """Return the value of the last measured round at or before x.

    >>> history = History([{"bytes": 0, "train_loss": 2.0}, {"bytes": 100, "train_loss": 1.0}])
    >>> value_at(history, find_axis("bytes"), 99, "train_loss")
    2.0
    """
    place = bisect.bisect_right(history.column(axis.column), x) - 1
    return history[place][name]


def first_at(history: History, axis: Axis, loss: float) -> float | None:
    """Return where the training loss is first at or below `loss`; None where it never is."""
    for row in history:
        if row["train_loss"] is not None and row["train_loss"] <= loss:
            return float(row[axis.column])
    return None


def common_end(histories: Iterable[History], axis: Axis) -> float:
    """Return how far all runs go: the end of the shortest."""
    return min(float(history[-1][axis.column]) for history in histories)


def common_loss(histories: Iterable[History]) -> float | None:
    """Return the lowest training loss that every run reaches after its start; None where a run has no finite one."""
    lowest = [min((row["train_loss"] for row in history[1:] if _is_finite(row)), default=None) for history in histories]
    finite = [loss for loss in lowest if loss is not None]
    return max(finite) if finite and len(finite) == len(lowest) else None


def on_axis(histories: Sequence[History], axis: Axis, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x, (points,), and the runs' values there, (runs, points), NaN where one is not finite."""
    if axis == ROUNDS:
        x = np.array(histories[0].column("round"), float)
        return x, np.array([_numbers(run.column(name)) for run in histories])
    end = common_end(histories, axis)
    x = np.unique([value for run in histories for value in run.column(axis.column) if value <= end])
    places = [np.searchsorted(np.array(run.column(axis.column), float), x, side="right") - 1 for run in histories]
    values = [_numbers(run.column(name))[place] for run, place in zip(histories, places, strict=True)]
    return x, np.array(values)


def _numbers(column: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in column], float)


def _is_finite(row: dict[str, float | None]) -> bool:
    loss = row["train_loss"]
    return loss is not None and math.isfinite(loss)
