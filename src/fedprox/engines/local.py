"""The embedded engine: local problems are solved in this process, on all its cores.

The whole population is one resident array (memory-mapped data is not even copied), the devices of a round are slices
of it, and each device is one task: draw its mini-batch orders, run the compiled loop over them. Tasks run side by
side, the largest first, and their results are added up along the fixed tree over positions, so that the bits of the
merged model do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.budget import minibatches
from fedprox.errors import DataError
from fedprox.models import Model
from fedprox.population import Population, Samples
from fedprox.runtime import Workers
from fedprox.solvers import Solver, fullbatch_program, minibatch_program
from fedprox.subproblem import Subproblem
from fedprox.trees import Tree, TreeSum, scale, to_numpy

__all__ = ["LocalEngine", "Resident", "Task"]


@dataclass(frozen=True)
class Task:
    """One device's part in a round."""

    device: int
    budget: int  # in mini-batch steps
    weight: float  # in the average


@dataclass(frozen=True)
class Resident:
    """Samples as arrays that compiled programs read in place."""

    x: jax.Array
    y: jax.Array

    @classmethod
    def of(cls, samples: Samples) -> Resident:
        """Hand samples to JAX; on a CPU their memory is shared where its alignment allows it."""
        if len(samples) >= 2**31:
            raise DataError(f"a population must have fewer than 2^31 samples; got {len(samples)}")
        return cls(jax.device_put(samples.x), jax.device_put(samples.y))


class LocalEngine:
    """Solves the subproblems of a round on the cores of this machine."""

    def __init__(
        self,
        population: Population,
        train: Resident,
        model: Model,
        solver: Solver,
        workers: Workers,
        *,
        seed: int,
        batch_size: int,
        learning_rate: float,
    ) -> None:
        self._offsets = population.train.offsets
        self._train = train
        self._solver = solver
        self._workers = workers
        self._seed = seed
        self._batch_size = batch_size
        self._learning_rate = jax.device_put(np.float32(learning_rate))
        self._piece = max(16, min(1024, 16384 // max(batch_size, 1)))  # steps per call of the compiled loop
        self._program: Callable[..., Any]
        if batch_size:
            self._program = minibatch_program(model, solver, batch_size)
        else:
            self._program = fullbatch_program(model, solver, min(256, len(population.train)))

    def compile(self, params: Tree) -> None:
        """Compile the local loop by taking one step and forgetting it."""
        self._solve(Task(device=0, budget=1, weight=0.0), 1, _problem(params, 0.0))

    def solve(self, round: int, tasks: list[Task | None], params: Tree, mu: float) -> tuple[Tree, NDArray[np.int64]]:
        """Solve the subproblem of every task and return (sum of weight * w_k, steps done).

        Tasks are listed by their position in the round; None is a device that is not asked for its result, and adds
        nothing at its position of the tree.
        """
        problem = _problem(params, mu)
        asked = [position for position, task in enumerate(tasks) if task is not None]
        total = TreeSum(len(tasks))
        steps = np.zeros(len(tasks), np.int64)
        nothing = jax.tree.map(np.zeros_like, params)
        for position in set(range(len(tasks))).difference(asked):
            total.add(position, nothing)
        work = [task for task in tasks if task is not None]
        solutions = self._workers.run(
            lambda task: self._solve(task, round, problem), work, [task.budget for task in work]
        )
        for index, (weighted, done) in solutions:
            total.add(asked[index], weighted)
            steps[asked[index]] = done
        return total.result(), steps

    def _solve(self, task: Task, round: int, problem: Subproblem) -> tuple[Tree, int]:
        """Return (weight * w_k, steps done) for one device."""
        begin, end = int(self._offsets[task.device]), int(self._offsets[task.device + 1])
        params = problem.anchor
        state = self._solver.init(params)
        fixed = (problem, self._learning_rate, self._train.x, self._train.y)
        if self._batch_size == 0:
            span = np.array([begin, end - begin, task.budget], np.int32)
            params, state = self._program(params, state, *fixed, span)
        else:
            pieces = minibatches(
                end - begin,
                self._batch_size,
                task.budget,
                seed=self._seed,
                round=round,
                device=task.device,
                piece=self._piece,
            )
            for rows, counts, steps in pieces:
                span = np.array([begin, steps], np.int32)
                params, state = self._program(params, state, *fixed, span, rows, counts)
        return scale(to_numpy(params), task.weight), task.budget


def _problem(params: Tree, mu: float) -> Subproblem:
    return jax.tree.map(jax.device_put, Subproblem(params, np.float32(mu)))
