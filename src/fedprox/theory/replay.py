"""A replay of a run, for what its records leave out: the gradient, and the solution of every device.

All draws depend only on (seed, purpose, round, device), so running the same config again visits the same models w^t,
and the local solution of any device in any round can be computed, including one that was not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from fedprox import methods, solvers
from fedprox.config import Config
from fedprox.core.compilation import compiled
from fedprox.core.errors import ConfigError
from fedprox.core.threads import Workers
from fedprox.core.trees import Tree, squared_norm, to_numpy
from fedprox.engines import Broadcast, Task, device_side
from fedprox.measures import Measurer, dissimilarity
from fedprox.models import Model
from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.sampling import Cohort
from fedprox.participation.stragglers import straggler_work
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.solvers import Solver
from fedprox.solvers.inexactness import inexactness
from fedprox.solvers.subproblem import Subproblem, add_terms, device_gradient

__all__ = ["Devices", "largest"]


class Devices:
    """The devices of a run: their losses, gradients and local solutions, computed on request."""

    def __init__(self, config: Config, population: Population, model: Model, solver: Solver | None = None) -> None:
        if patterns := config.personal.parameters + config.personal.frozen:
            raise ConfigError(
                "`personal.parameters` and `personal.frozen` must be empty for theory, whose theorems are about one "
                f"model that all devices train; got {patterns}"
            )
        self._population = population
        self._workers = Workers(config.engine.local_workers)
        self._train = LoadedSamples.of(population.train, model)
        self._config = config.solver
        self._seed, self._stragglers = config.seed, config.devices.stragglers
        self._most_epochs = config.compat.most_epochs(config.solver.epochs)
        shared = solver or solvers.build(config.solver, config.seed, config)
        method = methods.build(config.method)
        self._device = device_side(config, population.train, self._train, model, method, lambda device: shared)
        self._measurer = Measurer(population, self._train, model, self._workers, gradients=False)
        self._gradient = _gradient_program(model, self._train.block)

    def close(self) -> None:
        """End the threads."""
        self._workers.close()

    def loss(self, params: Tree) -> float:
        """Return f(params)."""
        return self._measurer.measure(params).train_loss

    def gradient_norm2(self, params: Tree) -> float:
        """Return ||grad f(params)||^2; grad f is the mean over all training samples, since p_k = n_k / n."""
        problem = Subproblem(params, np.float32(0))
        return squared_norm(self._subproblem_gradient(params, problem, 0, len(self._population.train)))

    def dissimilarity(self, params: Tree) -> float:
        """Return B(params) over all devices (Definition 3)."""
        offsets, problem = self._population.train.offsets, Subproblem(params, np.float32(0))
        norms2 = [
            squared_norm(self._subproblem_gradient(params, problem, int(begin), int(count)))
            for begin, count in zip(offsets[:-1], np.diff(offsets), strict=True)
        ]
        return dissimilarity(float(self._population.masses @ norms2), self.gradient_norm2(params))

    def full_budget(self, device: int) -> int:
        """Return the steps of E epochs on a device."""
        samples = self._population.train.size(device)
        return self._config.epochs * int(steps_per_epoch(samples, self._config.batch_size))

    def budgets_that_could_be(self, round: int, devices: Sequence[int]) -> list[tuple[int, int]]:
        """Return (device, steps) for every amount of work that each device could be given if it were drawn.

        Without stragglers it is E epochs; with stragglers also what the device would do as one.
        """
        found = [(device, self.full_budget(device)) for device in devices]
        if self._stragglers > 0:
            sizes = np.diff(self._population.train.offsets)
            numbers = np.array(devices, np.int64)
            every = Cohort(numbers, sizes[numbers], np.ones_like(numbers))
            work = straggler_work(
                every,
                share=1.0,
                epochs=self._config.epochs,
                most=self._most_epochs,
                batch_size=self._config.batch_size,
                seed=self._seed,
                round=round,
            )
            found += zip(devices, work.budget.tolist(), strict=True)
        return found

    def solutions(
        self, round: int, devices: Sequence[int], budgets: Sequence[int], params: Tree, mu: float
    ) -> list[Tree]:
        """Return the w_k of devices in a round that starts from `params`, each with its budget."""
        broadcast = Broadcast(round, params, (), mu)
        shared = self._device.shared(broadcast)

        def solve(task: Task) -> Tree:
            return to_numpy(self._device.solve(task, broadcast, shared).solved[1])

        tasks = [Task(device, budget, weight=1.0, mass=1.0) for device, budget in zip(devices, budgets, strict=True)]
        return self._workers.run(solve, tasks, list(budgets))

    def inexactness(self, device: int, solution: Tree, params: Tree, mu: float) -> float:
        """Return gamma_k = ||grad h_k(w_k; w^t)|| / ||grad h_k(w^t; w^t)|| (Definition 2), exactly."""
        begin = int(self._population.train.offsets[device])
        span = (begin, self._population.train.size(device))
        problem = Subproblem(params, np.float32(mu))
        return inexactness(
            math.sqrt(squared_norm(self._subproblem_gradient(solution, problem, *span))),
            math.sqrt(squared_norm(self._subproblem_gradient(params, problem, *span))),
        )

    def _subproblem_gradient(self, params: Tree, problem: Subproblem, begin: int, count: int) -> Tree:
        span = np.array([begin, count], np.int32)
        return to_numpy(self._gradient(params, problem, self._train.x, self._train.y, span))


def largest(gammas: Iterable[float]) -> float:
    """Return the largest gamma; not a number where one of them is not.

    >>> largest([0.5, float("nan"), 0.1])
    nan
    """
    return float(np.max(list(gammas)))


@lru_cache(maxsize=8)
def _gradient_program(model: Model, block: int) -> Callable[..., Any]:
    """Return the compiled `program(params, problem, x, y, (begin, count)) -> grad h` over consecutive samples."""

    def program(params: Tree, problem: Subproblem, x: jax.Array, y: jax.Array, span: jax.Array) -> Tree:
        begin, count = span
        return add_terms(problem, params, device_gradient(model, params, x, y, begin, count, block))

    return compiled(program, small=model.small)
