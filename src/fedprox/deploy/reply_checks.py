"""Bad replies never reach the model: each one is checked, and a bad one is refused for a reason in words."""

from __future__ import annotations

import math

import numpy as np

from fedprox.deploy.messages import Named, Work

__all__ = ["distance", "reason_to_refuse", "wrong_arrays"]


def reason_to_refuse(work: Work, anchor: Named, *, budget: int, max_norm: float = 0.0) -> str | None:
    """Return why a reply cannot be merged, or None for a good one.

    Args:
      anchor: w^t, as it was sent: the reply must have the same names, shapes and precision.
      budget: what the device was allowed, in steps.
      max_norm: the largest ||w_k - w^t||; 0: any.

    >>> anchor = {"weight": np.zeros(2, np.float32)}
    >>> reply = Work({"weight": np.array([1, np.nan], np.float32)}, 3, 0.1, 2.3, False)
    >>> reason_to_refuse(reply, anchor, budget=5)
    "'weight' has entries that are not finite"
    """
    if reason := wrong_arrays(work.params, anchor):
        return reason
    if work.steps > budget:
        return f"{work.steps} steps are more than the budget of {budget}"
    if reason := _wrong_numbers(work):
        return reason
    if max_norm > 0 and (norm := distance(work.params, anchor)) > max_norm:
        return f"||w_k - w^t|| = {norm:.4g} is beyond the limit of {max_norm:g}"
    return None


def distance(params: Named, anchor: Named) -> float:
    """Return ||params - anchor|| over all arrays, in double precision."""
    parts = (params[name].astype(np.float64) - anchor[name] for name in anchor)
    return math.sqrt(sum(float(np.vdot(part, part)) for part in parts))


def _wrong_numbers(work: Work) -> str | None:
    if not (math.isfinite(work.seconds) and work.seconds >= 0):
        return f"the seconds must be a number >= 0; got {work.seconds}"
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
