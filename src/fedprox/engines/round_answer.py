"""What an engine gives back for a round, and what the loop may ask of any engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from fedprox.engines.device import Broadcast, Task
from fedprox.trees import Tree, TreeSum

__all__ = ["Engine", "RoundAnswer", "tree_sum"]


@dataclass(frozen=True)
class RoundAnswer:
    """What the devices of a round gave, in the order of the round's list; None stands for a device not asked."""

    averaged: Tree  # sum of weight * reply over those asked; None if nobody was
    summed: Tree  # sum of p_k * reply
    states: list[Any]  # what each device remembers, or where the engine keeps it
    steps: list[int]
    drift2: list[float | None]
    gammas: list[float | None] | None = None  # gamma_k^t, where they were asked for
    gamma_seconds: float = 0.0  # how much longer the round took for them


class Engine(Protocol):
    """Where the devices of a round do their work."""

    @property
    def workers(self) -> int:
        """How many devices can work at the same time."""

    def compile(self, params: Tree) -> None:
        """Make ready for the first round."""

    def solve(self, tasks: Sequence[Task | None], broadcast: Broadcast, *, gammas: bool = False) -> RoundAnswer:
        """Have every task's device work on its subproblem; None is a device that is not asked for its result.

        With `gammas`, measure how exact each solution is (Definition 2).
        """

    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return sum of weight * grad F_k(params) over the tasks."""

    def secure(self, states: Mapping[int, Any]) -> Mapping[int, Tree]:
        """Return what devices remember (by device, as in `RoundAnswer.states`) as trees for a checkpoint."""

    def close(self) -> None:
        """Let go of whatever the engine holds."""


def tree_sum(answers: Sequence[Any], part: Callable[[Any], Tree]) -> Tree:
    """Add up a part of the answers along the tree over all positions; a device not asked adds nothing at its own."""
    first = next((answer for answer in answers if answer is not None), None)
    if first is None:
        return None
    nothing = jax.tree.map(np.zeros_like, part(first))
    if not jax.tree.leaves(nothing):
        return nothing
    total = TreeSum(len(answers))
    for position, answer in enumerate(answers):
        total.add(position, nothing if answer is None else part(answer))
    return total.result()
