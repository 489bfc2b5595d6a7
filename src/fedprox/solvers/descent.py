"""The one loop of all solvers that minimise h_k over all of a device's data.

From the start (w^t by default): get a direction from a rule, search along it, update the rule with the step, until the
iterate is gamma-inexact, the gradient is zero, no better point is found or the budget does not cover another trial. The
oracle counts the cost of rules and searches.

A budget that covers a single gradient is spent on one plain step from the start w, w - learning_rate * grad h_k(w).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedprox.core.trees import Tree
from fedprox.solvers.line_search import search
from fedprox.solvers.oracle import Oracle, Point, Vector
from fedprox.solvers.solver import LocalProblem

__all__ = ["Descent", "Rule", "Step"]


class Step(NamedTuple):
    """Where to search: along `direction`, trying `first` times it first."""

    direction: Vector
    first: float = 1.0


class Rule(Protocol):
    """Chooses the directions of one local solve."""

    def step(self, point: Point) -> Step:
        """Return where to search from a point."""

    def learn(self, before: Point, after: Point) -> None:
        """Update the state with the outcome of a step."""


@dataclass(frozen=True)
class Descent:
    """A solver defined by its rule for directions.

    Attributes:
      name: its name in configs and records.
      rule: `rule(oracle, learning_rate) -> Rule` at the start of every local solve.
      curvature: the second condition of the line search, or None for the first alone.
      uses_curvature: whether the rule needs products with the Hessian.
    """

    name: str
    rule: Callable[[Oracle, float], Rule]
    curvature: float | None = None
    uses_curvature: bool = False
    is_sgd: bool = False

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Minimise h_k up to the budget or until gamma-inexact."""
        oracle = Oracle(local)
        if not oracle.affords(2):  # an engine also compiles everything this way before the first round
            oracle.compile(self.uses_curvature)
        if not oracle.affords(1):
            return local.start, 0
        point = start = oracle.point(oracle.start)
        rule = self.rule(oracle, local.learning_rate)

        def is_open(point: Point) -> bool:
            return point.norm > local.gamma * start.norm

        while is_open(point) and oracle.affords(1):
            step = rule.step(point)
            found = search(oracle, point, step.direction, step.first, self.curvature)
            if found is None or (found.value >= point.value and found.norm >= point.norm):  # the rounding limit
                break
            rule.learn(point, found)
            point = found
        if point is start and not oracle.affords(1) and oracle.spent == local.steps_per_epoch and is_open(point):
            return oracle.tree(start.at - local.learning_rate * start.gradient), oracle.spent
        return (local.start if point is start else oracle.tree(point.at)), oracle.spent
