"""The device's side of a round: solve the subproblem, measure the solution, reply.

It is the same wherever it runs, in a thread of this process or on another machine: everything random in it is drawn
for (seed, round, device).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprox.core.compilation import compiled
from fedprox.core.randomness import Purpose
from fedprox.core.trees import Tree, quiet, scale, squared_distance, to_numpy
from fedprox.methods import Method, Reply, Solution
from fedprox.models import Model
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples, scalar, to_backend
from fedprox.privacy import Mechanism, seeded_normals
from fedprox.solvers import LocalProblem, Solver
from fedprox.solvers.inexactness import gradient_norm_program, inexactness
from fedprox.solvers.solver import span
from fedprox.solvers.subproblem import Subproblem, device_gradient

__all__ = ["Broadcast", "DeviceReply", "DeviceSide", "Task"]


class Task(NamedTuple):
    """One device's part in a round."""

    device: int
    budget: int  # in mini-batch steps
    weight: float  # in the average
    mass: float  # p_k
    state: Tree = None  # what the device remembers; None: it has not taken part yet


class Broadcast(NamedTuple):
    """What the server sends to every chosen device of a round; trees of NumPy arrays."""

    round: int
    params: Tree  # w^t
    sent: Tree  # what the method adds
    mu: float
    wants_drift: bool = False  # whether devices are to say how far they went


class DeviceReply(NamedTuple):
    """What comes back from a device."""

    averaged: Tree  # weight * its reply, which under privacy is its update instead of its model
    summed: Tree  # p_k * its reply
    state: Tree
    steps: int
    drift2: float | None  # ||w_k - w^t||^2, where it was asked for
    solved: tuple[LocalProblem, Tree]  # the subproblem and the solution w_k, for whoever wants to look closer


@dataclass(frozen=True)
class DeviceSide:
    """What all devices share: the program they run and the data it reads."""

    model: Model
    method: Method
    solver_for: Callable[[int], Solver]
    samples: Samples
    loaded: LoadedSamples
    seed: int
    batch_size: int
    learning_rate: float
    gamma: float = 0.0
    ahead: Callable[[Iterator[Any]], Iterator[Any]] = iter  # may make the next item while one is in use
    mechanism: Mechanism | None = None  # of privacy

    @quiet
    def solve(self, task: Task, broadcast: Broadcast, shared: Subproblem) -> DeviceReply:
        """Work on the subproblem of a device; `shared` is what all devices of the round have in common of it."""
        own = self.gradient(task.device, shared.anchor) if self.method.needs_gradients else None
        state = self.method.start_device(broadcast.params) if task.state is None else task.state
        linear = self.method.linear(broadcast.sent, state, own)
        problem = shared if linear is None else shared._replace(linear=to_backend(linear))
        local = LocalProblem(
            model=self.model,
            problem=problem,
            samples=self.samples,
            loaded=self.loaded,
            device=task.device,
            round=broadcast.round,
            seed=self.seed,
            budget=task.budget,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            gamma=self.gamma,
            ahead=self.ahead,
        )
        solver = self.solver_for(task.device)
        found, steps = solver.solve(local)
        params = to_numpy(found)
        reply: Reply = self.method.reply(
            Solution(
                anchor=broadcast.params,
                params=params,
                steps=steps,
                learning_rate=self.learning_rate,
                mu=broadcast.mu,
                solver=solver,
                sent=broadcast.sent,
                state=state,
            )
        )
        averaged = reply.averaged
        if self.mechanism is not None:
            normals = seeded_normals(self.seed, Purpose.DEVICE_NOISE, broadcast.round, task.device)
            averaged = self.mechanism.update(broadcast.params, averaged, normals)
        return DeviceReply(
            averaged=scale(averaged, task.weight),
            summed=scale(reply.summed, task.mass),
            state=reply.state,
            steps=steps,
            drift2=squared_distance(params, broadcast.params) if broadcast.wants_drift else None,
            solved=(local, found),
        )

    def warm_up(self, params: Tree) -> None:
        """Compile what a round needs by having one device take one step and forgetting it."""
        zeros = jax.tree.map(np.zeros_like, params)
        sent = self.method.send(self.method.start(params), zeros if self.method.needs_gradients else None)
        task = Task(device=0, budget=1, weight=1.0, mass=1.0)
        broadcast = Broadcast(1, params, sent, 0.0)
        answer = self.solve(task, broadcast, self.shared(broadcast))
        self.inexactness(*answer.solved)

    @staticmethod
    def shared(broadcast: Broadcast) -> Subproblem:
        """Return the subproblem without a linear term, with its arrays where the programs run."""
        return Subproblem(to_backend(broadcast.params), scalar(broadcast.mu))

    def gradient(self, device: int, params: Tree) -> Tree:
        """Return grad F_k at `params`."""
        program = _gradient_program(self.model, self.loaded.block)
        place = span(self.samples.offsets[device], self.samples.size(device))
        return to_numpy(program(params, self.loaded.x, self.loaded.y, place))

    def inexactness(self, local: LocalProblem, params: Tree) -> float:
        """Return gamma_k^t of a solution (Definition 2)."""
        program = gradient_norm_program(self.model, self.loaded.block)
        place = span(local.begin, local.count)
        norm, norm_at_anchor = (
            float(program(at, local.problem, self.loaded.x, self.loaded.y, place))
            for at in (params, local.problem.anchor)
        )
        return inexactness(norm, norm_at_anchor)


@lru_cache(maxsize=32)
def _gradient_program(model: Model, block: int) -> Callable[..., Any]:
    def program(params: Tree, x: jax.Array, y: jax.Array, place: jax.Array) -> Tree:
        return device_gradient(model, params, x, y, place[0], place[1], block)

    return compiled(program, small=model.small)
