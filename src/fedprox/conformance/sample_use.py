"""Is every sample used once per epoch? Inferred from the result of an epoch of mini-batches.

Four samples in mini-batches of two can be divided in six ways, and each leads to a different model. An update that uses
every sample once ends at one of the six, in each epoch. For one that does not, a very small learning rate shows how
often it used each sample: then w^t - w = eta sum_i c_i grad F_i(w^t) with c_i = (uses of i) / batch_size, and the c_i
follow by least squares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np

from fedprox.conformance.diagnosis import CLOSE, difference
from fedprox.conformance.problem import Params, Problem

__all__ = ["BATCH", "SAMPLES", "ends_at_a_division", "uses"]

SAMPLES, BATCH = 4, 2


def ends_at_a_division(problem: Problem, answer: Params, learning_rate: float, epochs: int) -> bool:
    """Return whether the result is that of epochs which use every sample once, in some order, with mu = 0."""
    return any(_near(problem, answer, end) for end in _ends(problem, learning_rate, epochs))


def uses(problem: Problem, moved: Callable[[float], Params]) -> list[float]:
    """Return how often an epoch used each sample; `moved(rate)` is the update's answer with a learning rate."""
    rate = 1e-4
    answer = moved(rate)
    step = np.concatenate([((problem.params[name] - answer[name]) / rate).ravel() for name in problem.params])
    slopes = []
    for row in range(len(problem.y)):
        slope = _part(problem, (row,)).gradient(problem.params, 0.0)
        slopes.append(np.concatenate([slope[name].ravel() for name in problem.params]))
    counts, *_ = np.linalg.lstsq(np.stack(slopes, axis=1), step, rcond=None)
    return [BATCH * float(count) for count in counts]


def _ends(problem: Problem, rate: float, epochs: int, at: Params | None = None) -> Iterator[Params]:
    at = problem.params if at is None else at
    if epochs == 0:
        yield at
        return
    rows = range(len(problem.y))
    for first in combinations(rows, BATCH):
        rest = tuple(row for row in rows if row not in first)
        params = _part(problem, rest).step(_part(problem, first).step(at, 0.0, rate), 0.0, rate)
        yield from _ends(problem, rate, epochs - 1, params)


def _part(problem: Problem, rows: tuple[int, ...]) -> Problem:
    return Problem(problem.params, problem.x[list(rows)], problem.y[list(rows)], problem.predict)


def _near(problem: Problem, answer: Params, expected: Params) -> bool:
    way = {name: expected[name] - problem.params[name] for name in expected}
    return difference(answer, expected, way) < CLOSE
