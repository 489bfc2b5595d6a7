"""From curves to evidence: one number per seed, a paired difference with its interval, and the conclusion.

A curve is summed up by its level (mean over the last fifth of its rounds), its mean over all rounds (how fast it gets
there) or its roughness (mean absolute change from one measured round to the next in its second half). Losses are capped
at ten times the initial one, also where they are not finite, so that a run that diverges counts much but does not
dominate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.paper.experiments import Curve
from fedprox.paper.intervals import Interval, interval
from fedprox.paper.results import Histories
from fedprox.runs.history import History

__all__ = ["Evidence", "Summary", "at_most", "average", "compare", "level", "roughness", "series", "side", "within"]

Summary = Callable[[NDArray[np.float64]], float]
_CUT = 10.0


@dataclass(frozen=True)
class Evidence:
    """One comparison: what is compared, the difference in the direction of the claim, and what it says.

    `says` is "yes" where the interval lies on the claim's side, "no" where it lies on the other, else "open".
    """

    label: str
    dataset: str
    difference: Interval
    says: str


def series(history: History, measure: str) -> NDArray[np.float64]:
    """Return a measure over the measured rounds; losses and variances are cut off, accuracies are shares.

    >>> series(History([{"train_loss": 2.0}, {"train_loss": 50.0}, {"train_loss": None}]), "train_loss").tolist()
    [2.0, 20.0, 20.0]
    """
    values = np.array([np.nan if value is None else value for value in history.column(measure)], float)
    if measure == "test_accuracy":
        return values
    cut = _CUT * values[0]
    cut_off: NDArray[np.float64] = np.where(np.isfinite(values), np.minimum(values, cut), cut)
    return cut_off


def level(values: NDArray[np.float64]) -> float:
    """Return the mean over the last fifth of the rounds.

    >>> level(np.arange(10.0))
    8.5
    """
    return float(values[-max(1, len(values) // 5) :].mean())


def average(values: NDArray[np.float64]) -> float:
    """Return the mean over all rounds."""
    return float(values.mean())


def roughness(values: NDArray[np.float64]) -> float:
    """Return the mean absolute change between neighbouring rounds in the second half.

    >>> roughness(np.array([9.0, 1.0, 2.0, 1.0]))
    1.0
    """
    return float(np.abs(np.diff(values[len(values) // 2 - 1 :])).mean()) if len(values) > 2 else 0.0


def compare(
    results: Histories, label: str, larger: Curve, smaller: Curve, measure: str, summary: Summary
) -> Evidence | None:
    """Return whether the summary of one curve is larger than that of another, seed by seed; None if one was not run."""
    return _evidence(results, label, larger, smaller, measure, summary, side)


def within(
    results: Histories, label: str, first: Curve, second: Curve, measure: str, summary: Summary, margin: float
) -> Evidence | None:
    """Return whether two curves differ by no more than a margin; None if one was not run."""
    return _evidence(
        results,
        label,
        first,
        second,
        measure,
        summary,
        lambda found: _both(side(found, -margin), _opposite(side(found, margin))),
    )


def at_most(
    results: Histories, label: str, first: Curve, second: Curve, measure: str, summary: Summary, margin: float
) -> Evidence | None:
    """Return whether one curve is above another by no more than a margin; None if one was not run."""
    return _evidence(results, label, first, second, measure, summary, lambda found: _opposite(side(found, margin)))


def _evidence(
    results: Histories,
    label: str,
    first: Curve,
    second: Curve,
    measure: str,
    summary: Summary,
    says: Callable[[Interval], str],
) -> Evidence | None:
    differences = _differences(results, first, second, measure, summary)
    if differences is None:
        return None
    found = interval(differences)
    return Evidence(label, first.dataset, found, says(found))


def side(found: Interval, bound: float = 0.0) -> str:
    """Return whether an interval lies above a bound; "open" with one seed, which gives no interval.

    >>> side(Interval(2.0, 1.0, 3.0)), side(Interval(2.0, 1.0, 3.0), 4.0), side(Interval(2.0, None, None))
    ('yes', 'no', 'open')
    """
    if found.low is None or found.high is None:
        return "open"
    return "yes" if found.low > bound else "no" if found.high < bound else "open"


def _opposite(answer: str) -> str:
    return {"yes": "no", "no": "yes"}.get(answer, "open")


def _both(one: str, other: str) -> str:
    answers = {one, other}
    return "no" if "no" in answers else "open" if "open" in answers else "yes"


def _differences(results: Histories, first: Curve, second: Curve, measure: str, summary: Summary) -> list[float] | None:
    ones, others = (
        [summary(series(history, measure)) for history in results.histories(curve)] for curve in (first, second)
    )
    if not ones or len(ones) != len(others):
        return None
    return [one - other for one, other in zip(ones, others, strict=True)]
