"""The paper's headline (Appendix C.3.2, Figure 7): how much more accurate FedProx is under 90% stragglers.

The accuracy of a run is that of the round in which it has converged, |f_t - f_(t-1)| < 0.0001, or started to diverge,
f_t - f_(t-10) > 1, or of its last round, whichever comes first. The paper reports 22 points on average over five data
sets. A run that is not measured every round cannot be seen to converge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedprox.paper.experiments import arms
from fedprox.paper.intervals import Interval, combined, interval
from fedprox.paper.protocol import DATASETS, FIVE
from fedprox.paper.results import Histories
from fedprox.runs.history import History
from fedprox.runs.stopping import Outcome

__all__ = ["PAPER_POINTS", "Ending", "Improvement", "ending", "headline", "headline_lines", "mean_improvement"]

PAPER_POINTS = 22.0
_SHARE = 0.9


@dataclass(frozen=True)
class Ending:
    """Where a run is taken to end, why (converged, diverged or last round), and its test accuracy there."""

    round: int | None  # None where it was not kept
    reason: str
    accuracy: float


@dataclass(frozen=True)
class Improvement:
    """FedProx beside FedAvg on a data set: the endings of each seed, and the difference of accuracies in points."""

    dataset: str
    fedavg: tuple[Ending, ...]
    fedprox: tuple[Ending, ...]
    points: Interval


def ending(history: History) -> Ending:
    """Return where a run ends in the sense of the paper.

    >>> rows = [
    ...     {"round": t, "train_loss": f, "test_accuracy": a} for t, f, a in [(0, 2, 0.1), (1, 1, 0.5), (2, 1, 0.6)]
    ... ]
    >>> ending(History(rows))
    Ending(round=2, reason='converged', accuracy=0.6)
    """
    outcome = Outcome()
    for row in history:
        outcome.see(row["round"], row["train_loss"])
        if outcome.converged_round is not None or outcome.diverged_round is not None:
            reason = "converged" if outcome.converged_round is not None else "diverged"
            return Ending(row["round"], reason, float(row["test_accuracy"]))
    return Ending(history[-1]["round"], "last round", float(history[-1]["test_accuracy"]))


def headline(results: Histories) -> list[Improvement]:
    """Return the improvement on each data set that was run."""
    found = []
    for name in FIVE:
        (_, fedavg), _, (_, fedprox) = arms(name, _SHARE)
        dropped, kept = results.histories(fedavg), results.histories(fedprox)
        if not dropped or len(dropped) != len(kept):
            continue
        before, after = tuple(map(ending, dropped)), tuple(map(ending, kept))
        points = [100 * (new.accuracy - old.accuracy) for old, new in zip(before, after, strict=True)]
        found.append(Improvement(name, before, after, interval(points)))
    return found


def mean_improvement(improvements: Sequence[Improvement]) -> Interval:
    """Return the mean over the data sets, in points."""
    return combined([each.points for each in improvements])


def headline_lines(improvements: Sequence[Improvement]) -> list[str]:
    """Return the computation in words, one line per data set and one for the mean."""
    lines = []
    for each in improvements:
        parts = [f"{name} {_accuracy(found)} ({_rounds(found)})" for name, found in _named(each)]
        lines.append(f"{DATASETS[each.dataset].title}: {', '.join(parts)}: {each.points.text('+.1f')} points")
    if improvements:
        mean = mean_improvement(improvements)
        lines.append(
            f"mean over {len(improvements)} data sets under 90% stragglers: {mean.text('+.1f')} points; "
            f"the paper reports {PAPER_POINTS:.0f}"
        )
    return lines


def _named(each: Improvement) -> list[tuple[str, tuple[Ending, ...]]]:
    return [("FedAvg", each.fedavg), ("FedProx", each.fedprox)]


def _accuracy(endings: Sequence[Ending]) -> str:
    return f"{100 * sum(each.accuracy for each in endings) / len(endings):.1f}%"


def _rounds(endings: Sequence[Ending]) -> str:
    reasons = [each.reason for each in endings]
    return ", ".join(f"{reason} {reasons.count(reason)}x" for reason in dict.fromkeys(reasons))
