"""The embedded engine: local problems are solved in this process, on all its cores.

Each device of a round is one task. Tasks run side by side, the largest first, and their replies are added up along the
fixed tree over positions, so that the bits of the merged model do not depend on the number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedprox.engines.device import Answer, Broadcast, DeviceSide, Task
from fedprox.engines.round_answer import RoundAnswer, tree_sum
from fedprox.resident import resident
from fedprox.runtime import Workers
from fedprox.trees import Tree, scale

__all__ = ["LocalEngine"]


class LocalEngine:
    """Runs the devices' side of a round on the cores of this machine."""

    def __init__(self, device: DeviceSide, workers: Workers) -> None:
        self._device = device
        self._workers = workers

    @property
    def workers(self) -> int:
        """The number of threads."""
        return self._workers.count

    def compile(self, params: Tree) -> None:
        """Compile what a round needs."""
        self._device.warm_up(params)

    def solve(self, tasks: Sequence[Task | None], broadcast: Broadcast, *, gammas: bool = False) -> RoundAnswer:
        """Have every task's device work on its subproblem; None is a device that is not asked for its result."""
        shared = self._device.shared(broadcast)
        answers = self._over(tasks, lambda task: self._device.solve(task, broadcast, shared))
        clock = time.perf_counter()
        measured = self._inexactness(answers) if gammas else None
        gamma_seconds = time.perf_counter() - clock
        return RoundAnswer(
            averaged=tree_sum(answers, lambda answer: answer.averaged),
            summed=tree_sum(answers, lambda answer: answer.summed),
            states=[answer and answer.state for answer in answers],
            steps=[answer.steps if answer else 0 for answer in answers],
            drift2=[answer and answer.drift2 for answer in answers],
            gammas=measured,
            gamma_seconds=gamma_seconds,
        )

    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return sum of weight * grad F_k(params) over the tasks."""
        at = resident(params)
        gradients = self._over(tasks, lambda task: scale(self._device.gradient(task.device, at), task.weight))
        return tree_sum(gradients, lambda gradient: gradient)

    def secure(self, states: Mapping[int, Any]) -> Mapping[int, Tree]:
        """Return the states: they are here."""
        return states

    def close(self) -> None:
        """Do nothing: the threads belong to whoever made them."""

    def _inexactness(self, answers: Sequence[Answer | None]) -> list[float | None]:
        solved = [answer and answer.solved for answer in answers]
        costs = [0 if one is None else one[0].count for one in solved]
        gammas: list[float | None] = [None] * len(solved)
        for position, gamma in self._workers.run(
            lambda one: None if one is None else self._device.inexactness(*one), solved, costs
        ):
            gammas[position] = gamma
        return gammas

    def _over(self, tasks: Sequence[Task | None], work: Callable[[Task], Any]) -> list[Any]:
        asked = [position for position, task in enumerate(tasks) if task is not None]
        chosen = [task for task in tasks if task is not None]
        answers: list[Any] = [None] * len(tasks)
        for index, answer in self._workers.run(work, chosen, [task.budget for task in chosen]):
            answers[asked[index]] = answer
        return answers
