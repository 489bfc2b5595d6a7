"""Newton's method with conjugate gradients, with as many Hessian products as the budget allows.

    H d = -grad h_k(w)    solved by conjugate gradients until ||H d + g|| <= min(1/2, sqrt(||g|| / ||g_0||)) ||g||

H is never formed: every iteration takes one product with the Hessian of h_k, which costs ceil(n_k / b) steps. It
ends early where the curvature along a direction is not positive, as it may be for a loss that is not convex (Nocedal
and Wright, 2006, Algorithm 7.1). The Newton step is then shortened until Armijo's condition holds.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from fedprox.config.fields import Count
from fedprox.solvers.descent import Descent, Step
from fedprox.solvers.oracle import Oracle, Point, Vector

__all__ = ["newton_cg"]


@lru_cache(maxsize=8)
def newton_cg(iterations: Count = 50) -> Descent:
    """Return Newton-CG with at most `iterations` products with the Hessian for each direction."""
    return Descent("newton_cg", partial(_Rule, iterations), uses_curvature=True)


class _Rule:
    def __init__(self, iterations: int, oracle: Oracle, learning_rate: float) -> None:
        self._iterations = iterations
        self._oracle = oracle
        self._learning_rate = learning_rate
        self._norm_at_start: float | None = None

    def step(self, point: Point) -> Step:
        self._norm_at_start = self._norm_at_start or point.norm
        accuracy = min(0.5, (point.norm / self._norm_at_start) ** 0.5) * point.norm
        direction: Vector = np.zeros_like(point.at)
        residual, search = -point.gradient, -point.gradient
        norm2 = float(residual @ residual)
        for _ in range(self._iterations):
            if norm2**0.5 <= accuracy or not self._oracle.affords(2):  # one has to be left for the line search
                break
            product = self._oracle.curvature(point.at, search)
            bend = float(search @ product)
            if not bend > 1e-7 * float(
                np.linalg.norm(search) * np.linalg.norm(product)
            ):  # not positive, beyond rounding
                break
            length = norm2 / bend
            direction = direction + length * search
            residual = residual - length * product
            norm2, before = float(residual @ residual), norm2
            search = residual + (norm2 / before) * search
        if direction.any():
            return Step(direction)
        return Step(-point.gradient, self._learning_rate)

    def learn(self, before: Point, after: Point) -> None:
        pass
