"""L-BFGS: Newton's method with the curvature seen along the last few steps (Nocedal, 1980).

    d = -H grad h_k(w),    H from the last m pairs s = change of w, y = change of the gradient,

by the two-loop recursion, which never forms H. The line search requires both of Wolfe's conditions, so that
<s, y> > 0 and H stays positive definite. The first step is as long as the scale of the gradient allows, at most 1.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache, partial

from fedprox.config.fields import Count
from fedprox.solvers.descent import Descent, Step
from fedprox.solvers.oracle import Oracle, Point, Vector

__all__ = ["lbfgs"]


@lru_cache(maxsize=8)
def lbfgs(memory: Count = 10) -> Descent:
    """Return L-BFGS with `memory` pairs."""
    return Descent("lbfgs", partial(_Rule, memory), curvature=0.9)


class _Rule:
    def __init__(self, memory: int, oracle: Oracle, learning_rate: float) -> None:
        self._pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=memory)  # s, y, <s, y>

    def step(self, point: Point) -> Step:
        if not self._pairs:
            return Step(-point.gradient, min(1.0, 1.0 / point.norm))
        return Step(-self._inverse_hessian_times(point.gradient))

    def learn(self, before: Point, after: Point) -> None:
        moved, changed = after.at - before.at, after.gradient - before.gradient
        bend = float(moved @ changed)
        if bend > 1e-10 * float(changed @ changed):  # the budget may have ended the search before Wolfe's condition
            self._pairs.append((moved, changed, bend))

    def _inverse_hessian_times(self, vector: Vector) -> Vector:
        weights = []
        for moved, changed, bend in reversed(self._pairs):
            weight = float(moved @ vector) / bend
            vector = vector - weight * changed
            weights.append(weight)
        _, changed, bend = self._pairs[-1]
        vector = vector * (bend / float(changed @ changed))
        for (moved, changed, bend), weight in zip(self._pairs, reversed(weights), strict=True):
            vector = vector + (weight - float(changed @ vector) / bend) * moved
        return vector
