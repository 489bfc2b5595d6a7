"""What a local solver is: anything that works on a device's subproblem within a budget.

The paper allows any local solver, iterative or not (Section 3.2). Here a solver is an object with a name and one
method, `solve(local) -> (params, steps)`: it starts at `local.start`, which is w^t unless the method says otherwise,
may use everything in the `LocalProblem`, and returns its last iterate and the mini-batch steps it has spent, at
most `local.budget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.participation.budget import Piece, minibatches, split_batches, steps_per_epoch
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.solvers.subproblem import Subproblem

__all__ = ["LocalProblem", "Solver", "trains_by_itself"]


@dataclass(frozen=True)
class LocalProblem:
    """The subproblem of one device in one round, with its data, its budget and its draws."""

    model: Model
    problem: Subproblem  # with its arrays where the programs run
    samples: Samples
    loaded: LoadedSamples
    device: int
    round: int
    seed: int
    budget: int  # in mini-batch steps
    batch_size: int
    learning_rate: float
    gamma: float = 0.0  # stop when gamma-inexact; 0: never
    ahead: Callable[[Iterator[Any]], Iterator[Any]] = iter  # may make the next item while one is in use
    start_at: Tree = None  # where to start, with its arrays where the programs run; None: at the anchor

    @property
    def start(self) -> Tree:
        """Where the solver starts."""
        return self.problem.anchor if self.start_at is None else self.start_at

    @property
    def begin(self) -> int:
        """The device's first row."""
        return int(self.samples.offsets[self.device])

    @property
    def count(self) -> int:
        """The number of the device's samples, n_k."""
        return self.samples.size(self.device)

    @property
    def steps_per_epoch(self) -> int:
        """What an epoch, or one gradient over all local samples, costs."""
        return int(steps_per_epoch(self.count, self.batch_size))

    def affords(self, steps: int) -> bool:
        """Return whether `steps` steps in all are within the budget."""
        return steps <= self.budget

    def fullbatch_steps(self, at_once: int = 0) -> Iterator[int]:
        """Yield how many steps over all samples to take next, at most `at_once` (0: all), until the budget is spent."""
        taken = 0
        while taken < self.budget:
            steps = min(at_once or self.budget, self.budget - taken)
            yield steps
            taken += steps

    def minibatches(self, piece: int, epochs_at_once: int = 0) -> Iterator[Piece]:
        """Return the mini-batches of the entire budget, as `fedprox.participation.budget.minibatches` does."""
        pieces = minibatches(
            self.count,
            self.batch_size,
            self.budget,
            seed=self.seed,
            round=self.round,
            device=self.device,
            piece=piece,
            epochs_at_once=epochs_at_once,
        )
        return self.ahead(pieces) if self.budget > piece else pieces

    def batches(self) -> Iterator[NDArray[np.int32]]:
        """Yield the device's rows in each mini-batch of the budget, one after another, in the same orders."""
        if self.batch_size == 0:
            for _ in self.fullbatch_steps(1):
                yield np.arange(self.count, dtype=np.int32)
            return
        for piece in self.minibatches(piece=256):
            yield from split_batches(piece, self.count)


class Solver(Protocol):
    """A local solver."""

    @property
    def name(self) -> str:
        """Its name in configs and records."""

    @property
    def is_sgd(self) -> bool:
        """Whether w^t - w_k is a fixed combination of mini-batch gradients, as some methods need.

        Such a solver may have momentum: it then has attributes `momentum` and `nesterov`, as `Sgd` has them.
        """

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Return the last iterate and the steps spent."""


def trains_by_itself(solver: Solver) -> bool:
    """Return whether a solver trains a module as its own library does, with dropout and batch statistics.

    Others take the loss and its gradient from the model, and batch statistics from `Model.training` if they step on
    mini-batches.
    """
    return getattr(solver, "updates_statistics", False) and not getattr(solver, "uses_model_training", False)


def span(*numbers: Any) -> NDArray[np.int32]:
    """Return integers as one small array: one argument of a compiled program is cheaper than several."""
    return np.array(numbers, np.int32)
