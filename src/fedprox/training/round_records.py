"""What a round adds to `metrics.jsonl` and `devices.jsonl`, besides its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedprox.config import Config
from fedprox.engines import RoundOutcome
from fedprox.measures import Measures
from fedprox.participation.traffic import Traffic
from fedprox.solvers import Solver
from fedprox.solvers.schedules import Schedule, build_changing
from fedprox.training.plan import RoundPlan

__all__ = ["bytes_sent", "clipped", "finite", "gamma_summary", "learning_rate", "staleness_summary", "stopped_by"]


def bytes_sent(plan: RoundPlan, traffic: Traffic) -> list[int]:
    """Return the bytes of each device: down to every one that was asked, up from those that are kept."""
    return (traffic.down + traffic.up * plan.kept.astype(np.int64)).tolist()


def stopped_by(
    plan: RoundPlan, answer: RoundOutcome, gamma: float, solver_for: Callable[[int], Solver]
) -> list[str | None]:
    """Return for each device what ended its work; None for one not asked.

    "deadline" where the time was up. "budget" where another epoch, or another gradient over all samples, would not
    have fitted. Otherwise "gamma" where the target is known to be met: its solver stops early for nothing else, or
    gamma was measured. "solver" where it stopped for a reason of its own, or for one that is not known since gamma was
    not measured.
    """
    per_epoch = plan.work.budget / np.where(plan.work.budget > 0, plan.work.epochs, 1)
    measured = answer.gammas or [None] * len(answer.steps)

    def reason(position: int) -> str | None:
        if not plan.kept[position]:
            return None
        if answer.cut_off[position]:
            return "deadline"
        if plan.work.budget[position] - answer.steps[position] < per_epoch[position]:
            return "budget"
        solver, known = solver_for(int(plan.cohort.devices[position])), measured[position]
        is_met = getattr(solver, "stops_at_gamma_alone", False) or (known is not None and known <= gamma * _ROUNDING)
        return "gamma" if is_met else "solver"

    return [reason(position) for position in range(len(answer.steps))]


_ROUNDING = 1 + 1e-4  # a solver has its own program for the norm


def clipped(answer: RoundOutcome, norm: float) -> list[bool | None]:
    """Return for each device whether its update was longer than the norm it is clipped to; None for one not asked."""
    return [None if drift2 is None else not drift2 <= norm * norm for drift2 in answer.drift2]


def gamma_summary(gammas: Sequence[float | None] | None) -> dict[str, float | None]:
    """Return the mean and the largest gamma of a round, None where one is not finite; nothing if none was measured."""
    known = [gamma for gamma in gammas or () if gamma is not None]
    if gammas is None:
        return {}
    if not known or not np.isfinite(known).all():
        return {"gamma_mean": None, "gamma_max": None}
    return {"gamma_mean": float(np.mean(known)), "gamma_max": max(known)}


def staleness_summary(records: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean and the largest staleness of the replies merged in some rounds; None where none was merged.

    >>> staleness_summary([{"staleness": [0, 3, 9], "kept": [True, True, False]}])
    {'staleness_mean': 1.5, 'staleness_max': 3}
    """
    known = [record for record in records if "staleness" in record]
    if not known:
        return {}
    merged = [each for row in known for each, kept in zip(row["staleness"], row["kept"], strict=True) if kept]
    return {"staleness_mean": float(np.mean(merged)) if merged else None, "staleness_max": max(merged, default=None)}


def finite(measures: Measures, dissimilarity: bool) -> dict[str, float | None]:
    """Return the measures with None in place of what is not finite; a model without a finite loss has no accuracy."""
    names = ["train_loss", "train_accuracy", "test_accuracy"]
    if dissimilarity:
        names += ["gradient_variance", "dissimilarity"]
    values = {name: getattr(measures, name) for name in names}
    if not np.isfinite(measures.train_loss):
        values |= {"train_accuracy": None, "test_accuracy": None}
    for name in ("gradient_variance", "dissimilarity"):
        if (interval := getattr(measures, f"{name}_interval")) is not None:
            values |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
    kept = {name: value if value is None or np.isfinite(value) else None for name, value in values.items()}
    reports: dict[str, float | None] = {}
    if measures.reports is not None:
        reports = {"measured_devices": measures.reports, "trimmed_loss": measures.trimmed_loss}
    return {**kept, **measures.own, **reports}


def learning_rate(config: Config, round: int, given: Schedule | None = None) -> dict[str, float]:
    """Return the learning rate of a round, where it changes over the rounds; round 0 has that of the first."""
    rate = build_changing(config.solver, config.rounds, given)
    return {} if rate is None else {"learning_rate": rate(max(round, 1))}
