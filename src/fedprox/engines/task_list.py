"""The tasks of a round as columns: what an engine takes, whether it processes them one by one or all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedprox.engines.device_side import Task

__all__ = ["TaskList"]


@dataclass(frozen=True, eq=False)
class TaskList(Sequence[Task | None]):
    """The tasks in the order of the round's list; as a sequence it has None for a device that is not asked.

    >>> tasks = TaskList.of([Task(7, 20, 0.5, 0.25), None])
    >>> tasks[0].budget, tasks[1], tasks.asked.tolist()
    (20, None, [True, False])
    """

    asked: NDArray[np.bool_]
    devices: NDArray[np.int64]
    budgets: NDArray[np.int64]  # in mini-batch steps
    weights: NDArray[np.float64]  # in the average
    masses: NDArray[np.float64]  # p_k
    states: Mapping[int, Any]  # what devices remember, of those that have taken part

    @classmethod
    def of(cls, tasks: Sequence[Task | None]) -> TaskList:
        """Return a sequence of tasks as columns."""
        if isinstance(tasks, TaskList):
            return tasks
        given = [_NOTHING if task is None else task for task in tasks]
        return cls(
            np.array([task is not None for task in tasks], bool),
            np.array([task.device for task in given], np.int64),
            np.array([task.budget for task in given], np.int64),
            np.array([task.weight for task in given], np.float64),
            np.array([task.mass for task in given], np.float64),
            {task.device: task.state for task in tasks if task is not None},
        )

    @classmethod
    def joined(cls, parts: Sequence[TaskList]) -> TaskList:
        """Return the tasks of several lists, of devices that remember nothing, as one."""
        return cls(
            np.concatenate([part.asked for part in parts]),
            np.concatenate([part.devices for part in parts]),
            np.concatenate([part.budgets for part in parts]),
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.masses for part in parts]),
            {},
        )

    def __len__(self) -> int:
        return len(self.asked)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """The budgets of the devices that are asked, 0 for the others."""
        return self.budgets if self.asked.all() else np.where(self.asked, self.budgets, 0)

    @overload
    def __getitem__(self, index: int) -> Task | None: ...
    @overload
    def __getitem__(self, index: slice) -> TaskList: ...
    def __getitem__(self, index: int | slice) -> Task | TaskList | None:
        return self.take(index) if isinstance(index, slice) else self.task(index) if self.asked[index] else None

    def task(self, position: int) -> Task:
        """Return the task at a position, asked or not."""
        device = int(self.devices[position])
        return Task(
            device,
            int(self.budgets[position]),
            float(self.weights[position]),
            float(self.masses[position]),
            self.states.get(device),
        )

    def tasks(self, chosen: NDArray[np.bool_]) -> list[tuple[int, Task]]:
        """Return the chosen ones with their positions."""
        positions = np.flatnonzero(chosen)
        columns = (self.devices, self.budgets, self.weights, self.masses)
        rows = zip(positions.tolist(), *(column[positions].tolist() for column in columns), strict=True)
        return [
            (position, Task(device, budget, weight, mass, self.states.get(device)))
            for position, device, budget, weight, mass in rows
        ]

    def take(self, positions: NDArray[np.int64] | slice) -> TaskList:
        """Return the tasks at some positions."""
        return TaskList(
            self.asked[positions],
            self.devices[positions],
            self.budgets[positions],
            self.weights[positions],
            self.masses[positions],
            self.states,
        )


_NOTHING = Task(device=0, budget=0, weight=0.0, mass=0.0)
