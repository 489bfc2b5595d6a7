"""The embedded engine: local problems are solved in this process, on all its cores.

Each device of a round is one task. Tasks run side by side, the largest first, and their replies are added up along the
fixed tree over positions, so that the bits of the merged model do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedprox.engines.device import Broadcast, DeviceSide, Task
from fedprox.resident import resident
from fedprox.runtime import Workers
from fedprox.trees import Tree, TreeSum, scale

__all__ = ["LocalEngine", "RoundAnswer"]


@dataclass(frozen=True)
class RoundAnswer:
    """What the devices of a round gave, in the order of the round's list; None stands for a device not asked."""

    averaged: Tree  # sum of weight * reply over those asked; None if nobody was
    summed: Tree  # sum of p_k * reply
    states: list[Tree]
    steps: list[int]
    drift2: list[float | None]
    solved: list[Any]


class LocalEngine:
    """Runs the devices' side of a round on the cores of this machine."""

    def __init__(self, device: DeviceSide, workers: Workers) -> None:
        self._device = device
        self._workers = workers

    def compile(self, params: Tree) -> None:
        """Compile what a round needs by having one device take one step and forgetting it."""
        method = self._device.method
        zeros = jax.tree.map(np.zeros_like, params)
        sent = method.send(method.start(params), zeros if method.needs_gradients else None)
        task = Task(device=0, budget=1, weight=1.0, mass=1.0, state=method.start_device(params))
        broadcast = Broadcast(1, params, sent, 0.0)
        answer = self._device.solve(task, broadcast, self._device.shared(broadcast))
        self._device.inexactness(*answer.solved)

    def solve(self, tasks: Sequence[Task | None], broadcast: Broadcast) -> RoundAnswer:
        """Have every task's device work on its subproblem; None is a device that is not asked for its result."""
        shared = self._device.shared(broadcast)
        answers = self._over(tasks, lambda task: self._device.solve(task, broadcast, shared))
        return RoundAnswer(
            averaged=_tree_sum(answers, lambda answer: answer.averaged),
            summed=_tree_sum(answers, lambda answer: answer.summed),
            states=[answer and answer.state for answer in answers],
            steps=[answer.steps if answer else 0 for answer in answers],
            drift2=[answer and answer.drift2 for answer in answers],
            solved=[answer and answer.solved for answer in answers],
        )

    def inexactness(self, answer: RoundAnswer) -> list[float | None]:
        """Return gamma_k^t for every device of a round, None for one not asked."""
        asked = [position for position, solved in enumerate(answer.solved) if solved is not None]
        chosen = [answer.solved[position] for position in asked]
        gammas: list[float | None] = [None] * len(answer.solved)
        measured = self._workers.run(
            lambda solved: self._device.inexactness(*solved), chosen, [local.count for local, _ in chosen]
        )
        for index, gamma in measured:
            gammas[asked[index]] = gamma
        return gammas

    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return sum of weight * grad F_k(params) over the tasks."""
        at = resident(params)
        gradients = self._over(tasks, lambda task: scale(self._device.gradient(task.device, at), task.weight))
        return _tree_sum(gradients, lambda gradient: gradient)

    def _over(self, tasks: Sequence[Task | None], work: Callable[[Task], Any]) -> list[Any]:
        asked = [position for position, task in enumerate(tasks) if task is not None]
        chosen = [task for task in tasks if task is not None]
        answers: list[Any] = [None] * len(tasks)
        for index, answer in self._workers.run(work, chosen, [task.budget for task in chosen]):
            answers[asked[index]] = answer
        return answers


def _tree_sum(answers: list[Any], part: Callable[[Any], Tree]) -> Tree:
    """Add up a part of the answers along the tree over all positions; a device not asked adds nothing at its own."""
    first = next((answer for answer in answers if answer is not None), None)
    if first is None:
        return None
    nothing = jax.tree.map(np.zeros_like, part(first))
    total = TreeSum(len(answers))
    for position, answer in enumerate(answers):
        total.add(position, nothing if answer is None else part(answer))
    return total.result()
