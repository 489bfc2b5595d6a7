"""How far to go along a direction d from w: until h has decreased enough, and for some solvers its slope too.

With phi(t) = h(w + t d), a step t is accepted if

    phi(t) <= phi(0) + 1e-4 t phi'(0)                                  (Armijo: h has come down)
    phi'(t) >= curvature * phi'(0)                                     (Wolfe: it is no longer as steep)

Close to a solution the change of h is lost in rounding. There the first condition is replaced by its form in slopes,
phi'(t) <= (2 * 1e-4 - 1) phi'(0), as long as h has not grown beyond rounding (Hager and Zhang, 2005).

Too long steps are shortened and too short ones lengthened by interpolation between the ends of a bracket. Every trial
gives value and gradient at once, and costs ceil(n_k / b) steps.
"""

from __future__ import annotations

import math

from fedprox.solvers.oracle import Oracle, Point, Vector

__all__ = ["search"]

_DECREASE = 1e-4
_ROUNDING = 1e-6  # relative, of a sum in single precision
_TRIALS = 40


def search(
    oracle: Oracle, start: Point, direction: Vector, first: float, curvature: float | None = None
) -> Point | None:
    """Return the next point from `start`, or None if nothing better is found or the budget ends.

    `first` is the first step to try; without `curvature` the first condition is enough. If the budget ends with a
    point that meets the first condition alone, that is returned.
    """
    slope = float(start.gradient @ direction)
    if not slope < 0:
        return None
    low, high, step = 0.0, math.inf, first
    low_slope = slope
    best: Point | None = None
    for _ in range(_TRIALS):
        if not oracle.affords(1):
            break
        trial = oracle.point(start.at + step * direction)
        trial_slope = float(trial.gradient @ direction)
        if not _has_come_down(start, slope, step, trial, trial_slope):
            high = step
            step = _shorter(low, high, step, start, slope, trial)
        elif curvature is None or trial_slope >= curvature * slope:
            return trial
        else:
            best = trial if best is None or trial.value <= best.value else best
            before, low, low_slope, previous = low, step, trial_slope, low_slope
            step = _longer(before, low, high, previous, low_slope)
        if high - low <= 1e-12 * max(low, 1e-30):
            break
    return best


def _has_come_down(start: Point, slope: float, step: float, trial: Point, trial_slope: float) -> bool:
    if trial.value <= start.value + _DECREASE * step * slope:
        return True
    within_rounding = trial.value <= start.value + _ROUNDING * abs(start.value)
    return within_rounding and trial_slope <= (2 * _DECREASE - 1) * slope


def _shorter(low: float, high: float, step: float, start: Point, slope: float, trial: Point) -> float:
    """Return the minimum of the parabola through what is known, kept well inside the bracket."""
    if low == 0.0 and math.isfinite(trial.value):
        bend = trial.value - start.value - slope * step
        if bend > 0:
            return min(max(-slope * step * step / (2 * bend), 0.1 * high), 0.5 * high)
    return 0.5 * (low + high) if low > 0 else 0.1 * high


def _longer(before: float, low: float, high: float, previous: float, slope: float) -> float:
    """Return where a linear slope would vanish, at least twice and at most ten times as far."""
    if math.isfinite(high):
        return 0.5 * (low + high)
    change = slope - previous
    guess = low - slope * (low - before) / change if change > 0 else math.inf
    return min(max(guess, 2 * low), 10 * low)
