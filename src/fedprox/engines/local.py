"""The embedded engine: local problems are solved in this process, on all its cores.

A device of a round is one job; many small ones that stand together in the round's list are one job too
(`fedprox.engines.small_devices`). Jobs run side by side, the largest first, and the thread that has done one adds its
replies to the sum, along the fixed tree over positions, so that the bits of the merged model do not depend on the
number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedprox.core.lines import Subtree
from fedprox.core.threads import Workers
from fedprox.core.trees import Tree, quiet, scale, to_numpy
from fedprox.engines.device_side import DeviceSide, Task
from fedprox.engines.groups import Group, balanced_level, find_groups, group_level
from fedprox.engines.outcome import Engine, RoundOutcome, RoundRequest
from fedprox.engines.small_devices import SmallDevices
from fedprox.engines.task_list import TaskList
from fedprox.methods import Received
from fedprox.methods.merging import ReplySums, RoundSum
from fedprox.population.loaded_samples import to_backend
from fedprox.solvers import LocalProblem
from fedprox.solvers.subproblem import Subproblem

__all__ = ["LocalEngine"]

Item = TypeVar("Item")


class _Division(NamedTuple):
    """The devices of a round as the jobs that they are."""

    added: list[Group]  # groups whose replies the program adds up
    calls: list[Callable[[], Tree]]  # the calls that do it, one for each
    groups: list[Group]  # groups whose replies come out
    alone: list[tuple[int, Task]]  # other devices, with their positions


class LocalEngine(Engine):
    """Runs the devices' side of a round on the cores of this machine."""

    def __init__(self, device: DeviceSide, workers: Workers) -> None:
        self._device = device
        self._workers = workers
        self._small = SmallDevices(device)

    @property
    def workers(self) -> int:
        """The number of threads."""
        return self._workers.count

    def compile(self, params: Tree) -> None:
        """Compile what a round needs."""
        self._device.warm_up(params)
        if self._small.usable:
            group, broadcast = Group.of_one(), self._small.first_broadcast(params)
            if self._small.adds_up(broadcast):
                self._small.add_up(group.tasks, self._small.rows(group.tasks), broadcast).call(0, 1)()
            else:
                group.sums(self._small.solve(group.tasks, broadcast), self._small.lines)

    def solve(self, request: RoundRequest) -> RoundOutcome:
        """Let every task's device work on its subproblem."""
        tasks, broadcast = TaskList.of(request.tasks), request.broadcast
        sums = ReplySums(len(tasks))
        given = RoundOutcome.empty(request)
        solved: list[tuple[LocalProblem, Tree] | None] = [None] * len(tasks)
        adding = Lock()

        @quiet
        def solve(shared: Subproblem, position: int, task: Task) -> None:
            answer = self._device.solve(task, broadcast, shared)
            given.states[position] = answer.reply.state
            given.steps[position] = answer.steps
            given.drift2[position] = answer.drift2
            if request.gammas:
                solved[position] = answer.solved
            if given.replies is not None:
                given.replies[position] = task.received(answer.reply, answer.steps)
                return
            weighted = task.weighted(answer.reply)
            with adding:
                sums.add(position, *weighted)

        @quiet
        def solve_group(group: Group) -> None:
            answer = self._small.solve(group.tasks, broadcast)
            with self._small.turn:
                group.put(given.steps, answer.steps)
                group.put(given.states, answer.states)
                group.put(given.drift2, answer.drift2)
                if given.replies is not None:
                    group.put(given.replies, answer.received(group.tasks))
                    return
                averaged, summed = group.sums(answer, self._small.lines)
            with adding:
                sums.add_subtrees(group.begin, averaged, summed, group.adds)

        added, calls, groups, alone = self._divide(tasks, request)
        jobs: list[Callable[[], Any]] = [*calls, *(partial(solve_group, group) for group in groups)]
        if alone:
            shared = self._device.shared(broadcast)
            jobs += [partial(solve, shared, position, task) for position, task in alone]
        costs = [group.steps for group in (*added, *groups)] + [task.budget for _, task in alone]
        answers = self._workers.run(_call, jobs, costs)
        for group, total in zip(added, answers, strict=False):
            given.steps[group.span] = tasks.steps[group.span].tolist()
            subtree = Subtree(group.level, 0, to_numpy(total))
            sums.add_subtrees(group.begin, [subtree], [Subtree(0, 0, ())], group.adds)
        clock = time.perf_counter()
        if (found := given.gammas) is not None:

            def measure(position: int, one: tuple[LocalProblem, Tree]) -> None:
                found[position] = self._device.inexactness(*one)

            self._each(solved, measure, _samples)
        seconds = time.perf_counter() - clock
        averaged, summed = sums.result()
        states = given.states if groups or alone else []
        return replace(given, averaged=averaged, summed=summed, states=states, gamma_seconds=seconds)

    @quiet
    def solve_versions(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Let devices work that were given different models; small ones in as few calls as possible."""
        broadcasts = [request.broadcast for request in requests]
        every = [TaskList.of(request.tasks) for request in requests]
        can_mix = len(requests) > 1 and not any(each.gammas or not each.every_reply for each in requests)
        if not can_mix or not self._small.can_mix(broadcasts) or not all(map(self._are_small, every)):
            return super().solve_versions(requests)
        tasks = TaskList.joined(every)
        versions = np.repeat(np.arange(len(every)), [len(each) for each in every])
        answer = self._small.solve_versions(tasks, versions, broadcasts)
        received: list[Received | None] = list(answer.received(tasks))
        drift2: list[float | None] = [*answer.drift2] or [None] * len(tasks)
        outcomes, begin = [], 0
        for request, own in zip(requests, every, strict=True):
            part = slice(begin, begin + len(own))
            begin += len(own)
            empty = RoundOutcome.empty(request)
            outcomes.append(replace(empty, steps=answer.steps[part], drift2=drift2[part], replies=received[part]))
        return outcomes

    def _are_small(self, tasks: TaskList) -> bool:
        return bool(self._small.takes(tasks, self._small.rows(tasks)).all())

    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return sum of weight * grad F_k(params) over the tasks."""
        at = to_backend(params)
        total, adding = RoundSum(len(tasks)), Lock()

        @quiet
        def add(position: int, task: Task) -> None:
            weighted = scale(self._device.gradient(task.device, at), task.weight)
            with adding:
                total.add(position, weighted)

        self._each(tasks, add, _budget)
        return total.result()

    def _divide(self, tasks: TaskList, request: RoundRequest) -> _Division:
        """Divide the devices of a round."""
        if not self._small.usable or request.gammas:  # a gamma is measured device by device
            return _Division([], [], [], tasks.tasks(tasks.asked))
        rows = self._small.rows(tasks)
        small = self._small.takes(tasks, rows)
        adds_up = not request.every_reply and self._small.adds_up(request.broadcast)
        if adds_up and (small is tasks.asked or np.array_equal(small, tasks.asked)):
            level = balanced_level(tasks.steps, self.workers, self._small.most_added(tasks))
        else:
            level = group_level(len(tasks), self.workers, self._small.lines)
        groups = find_groups(tasks, small, level) if level else []
        added: list[Group] = []
        if adds_up:
            added = [group for group in groups if group.adds_all and self._small.fits_one_call(group.steps)]
        if added:
            groups = [group for group in groups if group not in added]
            program = self._small.add_up(tasks, rows, request.broadcast)
        calls = [program.call(group.begin, len(group.adds)) for group in added]
        return _Division(added, calls, groups, _others(tasks, [*added, *groups]))

    def _each(
        self, items: Sequence[Item | None], work: Callable[[int, Item], None], cost: Callable[[Item], int]
    ) -> None:
        """Do work(position, item) for the items that are not None, side by side."""
        asked = [(position, item) for position, item in enumerate(items) if item is not None]
        self._workers.run(lambda one: work(*one), asked, [cost(item) for _, item in asked])


def _others(tasks: TaskList, groups: list[Group]) -> list[tuple[int, Task]]:
    """Return the devices that are asked and in no group, with their positions."""
    if sum(len(group.positions) for group in groups) == np.count_nonzero(tasks.asked):
        return []
    others = tasks.asked.copy()
    for group in groups:
        others[group.positions] = False
    return tasks.tasks(others)


def _call(job: Callable[[], Any]) -> Any:
    return job()


def _budget(task: Task) -> int:
    return task.budget


def _samples(solved: tuple[LocalProblem, Tree]) -> int:
    return solved[0].count
