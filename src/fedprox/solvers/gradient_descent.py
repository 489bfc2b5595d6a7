"""Gradient descent on the entire local data set, with a line search.

    w <- w - t grad h_k(w)

The first step tried is the learning rate; later ones start from the length of Barzilai and Borwein (1988),
t = ||s||^2 / <s, y> with s and y the last changes of w and of the gradient, and are shortened until Armijo's condition
holds.
"""

from __future__ import annotations

from functools import lru_cache

from fedprox.solvers.descent import Descent, Step
from fedprox.solvers.oracle import Oracle, Point

__all__ = ["gradient_descent"]


@lru_cache(maxsize=1)
def gradient_descent() -> Descent:
    """Return gradient descent with a line search."""
    return Descent("gradient_descent", _Rule)


class _Rule:
    def __init__(self, oracle: Oracle, learning_rate: float) -> None:
        self._first = learning_rate

    def step(self, point: Point) -> Step:
        return Step(-point.gradient, self._first)

    def learn(self, before: Point, after: Point) -> None:
        moved, changed = after.at - before.at, after.gradient - before.gradient
        bend = float(moved @ changed)
        length2 = float(moved @ moved)
        self._first = length2 / bend if bend > 0 else 2 * (length2**0.5) / before.norm
