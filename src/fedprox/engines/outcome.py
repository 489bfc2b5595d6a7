"""What an engine gives back for a round, and what the loop may ask of any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from fedprox.core.trees import Tree, TreeSum
from fedprox.engines.device_side import Broadcast, Task

__all__ = ["Engine", "RoundOutcome", "RoundSum"]


@dataclass(frozen=True)
class RoundOutcome:
    """What the devices of a round gave, in the order of the round's list; None stands for a device not asked."""

    averaged: Tree  # sum of weight * reply over those asked; None if nobody was
    summed: Tree  # sum of p_k * reply
    states: list[Any]  # what each device remembers, or where the engine keeps it
    steps: list[int]
    drift2: list[float | None]  # where it was asked for
    gammas: list[float | None] | None = None  # gamma_k^t, where they were asked for
    gamma_seconds: float = 0.0  # how much longer the round took for them

    @classmethod
    def of_none(cls, count: int, gammas: bool) -> RoundOutcome:
        """Return the answer of a round of `count` devices of whom nobody was asked."""
        return cls(
            averaged=None,
            summed=None,
            states=[None] * count,
            steps=[0] * count,
            drift2=[None] * count,
            gammas=[None] * count if gammas else None,
        )


class Engine(Protocol):
    """Where the devices of a round do their work."""

    @property
    def workers(self) -> int:
        """How many devices can work at the same time."""

    def compile(self, params: Tree) -> None:
        """Make ready for the first round."""

    def solve(self, tasks: Sequence[Task | None], broadcast: Broadcast, *, gammas: bool = False) -> RoundOutcome:
        """Have every task's device work on its subproblem; None is a device that is not asked for its result.

        With `gammas`, measure how exact each solution is (Definition 2).
        """

    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return sum of weight * grad F_k(params) over the tasks."""

    def secure(self, states: Mapping[int, Any]) -> Mapping[int, Tree]:
        """Return what devices remember (by device, as in `RoundOutcome.states`) as trees for a checkpoint."""

    def close(self) -> None:
        """Let go of whatever the engine holds."""


class RoundSum:
    """The sum over a round's list of values that arrive in any order; whoever is not heard of adds nothing.

    A value is that of one position or, with a `level`, the sum over an aligned chunk of 2**level positions.
    """

    def __init__(self, count: int, level: int = 0) -> None:
        self._total = TreeSum(count)
        self._level = level
        self._missing = set(range(-(-count >> level)))
        self._last: Tree = None

    def add(self, index: int, value: Tree) -> None:
        """Put in the value of a position or chunk."""
        self._missing.remove(index)
        self._last = value
        if jax.tree.leaves(value):
            self._total.add(index, value, self._level)

    def result(self) -> Tree:
        """Return the sum, None if there was no value."""
        if not jax.tree.leaves(self._last):
            return self._last
        nothing = jax.tree.map(np.zeros_like, self._last) if self._missing else None
        for index in self._missing:
            self._total.add(index, nothing, self._level)
        return self._total.result()
