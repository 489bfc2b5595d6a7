"""Bad replies never reach the model: each one is checked, and a bad one is refused for a reason in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedprox.deploy.message_records import Named
from fedprox.deploy.messages import WorkReport

__all__ = ["Expected", "distance", "reason_to_refuse", "wrong_arrays"]

_LARGEST_LOSS = 1e30
_CLOCKS = 0.9  # two clocks may differ in pace by a tenth


@dataclass(frozen=True)
class Expected:
    """What the server knows of the work that it asked for.

    Attributes:
      budget: what the device was allowed, in steps.
      seconds: that it was allowed; 0: as long as it takes.
      spends_budget: whether its solver ends before the budget is spent for no reason but the time, as SGD does.
      moves_at_once: whether w_k may differ from w^t without a step: it has noise, or another starting point.
      max_norm: the largest ||w_k - w^t||; 0: any.
    """

    budget: int
    seconds: float = 0.0
    spends_budget: bool = False
    moves_at_once: bool = False
    max_norm: float = 0.0


def reason_to_refuse(work: WorkReport, anchor: Named, expected: Expected, waited: float = math.inf) -> str | None:
    """Return why a reply cannot be merged, or None for a good one.

    Args:
      anchor: w^t, as it was sent: the reply must have the same names, shapes and precision.
      waited: seconds from sending the message to the reply, by the server's clock.

    >>> anchor = {"weight": np.zeros(2, np.float32)}
    >>> reply = WorkReport({"weight": np.array([1, np.nan], np.float32)}, 3, 0.1, 2.3, False)
    >>> reason_to_refuse(reply, anchor, Expected(budget=5))
    "'weight' has entries that are not finite"
    """
    if reason := wrong_arrays(work.params, anchor):
        return reason
    if reason := _wrong_steps(work, anchor, expected, waited) or _wrong_numbers(work):
        return reason
    if expected.max_norm > 0 and (norm := distance(work.params, anchor)) > expected.max_norm:
        return f"||w_k - w^t|| = {norm:.4g} is beyond the limit of {expected.max_norm:.4g}"
    return None


def _wrong_steps(work: WorkReport, anchor: Named, expected: Expected, waited: float) -> str | None:
    """Return why the number of steps cannot be true."""
    steps, budget = work.steps, expected.budget
    if steps > budget:
        return f"{steps} steps are more than the budget of {budget}"
    if steps == 0 and not expected.moves_at_once and distance(work.params, anchor) > 0:
        return "w_k must be w^t after 0 steps"
    if steps == budget or not (expected.spends_budget or work.stopped_by_time):
        return None
    return _wrong_excuse(work, expected, waited)


def _wrong_excuse(work: WorkReport, expected: Expected, waited: float) -> str | None:
    """Return why fewer steps than the budget cannot be for lack of time."""
    done = f"{work.steps} of {expected.budget} steps"
    if not work.stopped_by_time:
        return f"{done} are too few for a solver that spends its budget"
    if expected.seconds == 0:
        return f"{done} cannot be for lack of time, since there is no deadline"
    if waited < _CLOCKS * expected.seconds:
        return f"{done} cannot be for lack of time after {waited:.3g} of {expected.seconds:.3g} seconds"
    return None


def distance(params: Named, anchor: Named) -> float:
    """Return ||params - anchor|| over all arrays, in double precision."""
    parts = (params[name].astype(np.float64) - anchor[name] for name in anchor)
    return math.sqrt(sum(float(np.vdot(part, part)) for part in parts))


def _wrong_numbers(work: WorkReport) -> str | None:
    if not (math.isfinite(work.seconds) and work.seconds >= 0):
        return f"the seconds must be a number >= 0; got {work.seconds}"
    if not abs(work.loss) <= _LARGEST_LOSS:
        return f"the loss must be a finite number, at most {_LARGEST_LOSS:g}; got {work.loss}"
    if work.speed is not None and not (math.isfinite(work.speed) and work.speed > 0):
        return f"the speed must be a number > 0; got {work.speed}"
    if work.gamma is not None and not work.gamma >= 0:
        return f"gamma must be a number >= 0; got {work.gamma}"
    return None


def wrong_arrays(params: Named, anchor: Named) -> str | None:
    """Return how arrays differ in names, shapes or precision from those of the model, or that they are not finite."""
    if missing := sorted(anchor.keys() - params.keys()):
        return f"{missing[0]!r} is missing"
    if extra := sorted(params.keys() - anchor.keys()):
        return f"{extra[0]!r} is not part of the model"
    for name, sent in anchor.items():
        got = params[name]
        if (got.shape, got.dtype) != (sent.shape, sent.dtype):
            return f"{name!r} must be {sent.dtype} of shape {sent.shape}; got {got.dtype} of shape {got.shape}"
        if not np.isfinite(got).all():
            return f"{name!r} has entries that are not finite"
    return None
