"""The device's side of a round: solve the subproblem, measure the solution, reply.

It is the same wherever it runs, in a thread of this process or on another machine: everything random in it is drawn
for (seed, round, device). A simulation does all of it in one place (`DeviceSide.solve`). A real device does the work
(`DeviceSide.work`), with a deadline, and sends its iterate; the method itself runs on the server, which keeps what it
remembers for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprox.core.compilation import compiled
from fedprox.core.errors import RunError
from fedprox.core.own_code import is_library_code, own_code
from fedprox.core.own_results import check_steps, fitted
from fedprox.core.randomness import Purpose
from fedprox.core.trees import Tree, quiet, scale, squared_distance, to_numpy
from fedprox.engines.deadline import Deadline, TimedProblem
from fedprox.methods import DeviceView, Method, Posed, Received, Reply
from fedprox.methods.custom_checks import checked_posed, checked_reply
from fedprox.models import Model
from fedprox.participation.budget import padded_batch
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples, scalar, to_backend
from fedprox.privacy import Mechanism, seeded_normals
from fedprox.solvers import LocalProblem, Solver
from fedprox.solvers.host_gradient import host_gradient
from fedprox.solvers.inexactness import gradient_norm_program, inexactness
from fedprox.solvers.solver import span
from fedprox.solvers.subproblem import Subproblem, device_gradient, device_value_and_gradient, place_mu

__all__ = ["Broadcast", "DeviceReply", "DeviceSide", "Task", "Work", "view_device"]


class Task(NamedTuple):
    """One device's part in a round."""

    device: int
    budget: int  # in mini-batch steps
    weight: float  # in the average
    mass: float  # p_k
    state: Tree = None  # what the device remembers; None: it has not taken part yet

    def weighted(self, reply: Reply) -> tuple[Tree, Tree]:
        """Return what a reply adds to the two sums of the round."""
        return scale(reply.averaged, self.weight), scale(reply.summed, self.mass)

    def received(self, reply: Reply, steps: int) -> Received:
        """Return a reply for methods and merge rules that see every one; what the device remembers stays out of it."""
        return Received(self.device, reply._replace(state=None), self.weight, self.mass, steps)


class Broadcast(NamedTuple):
    """What the server sends to every chosen device of a round; trees of NumPy arrays."""

    round: int
    params: Tree  # w^t
    sent: Tree  # what the method adds
    mu: float
    wants_drift: bool = False  # whether devices report how far they moved


class Work(NamedTuple):
    """What a device has done on its subproblem."""

    local: LocalProblem
    found: Tree  # the solution w_k, where the programs run
    steps: int


class DeviceReply(NamedTuple):
    """What comes back from a device."""

    reply: Reply  # under privacy its update in place of its model
    steps: int
    drift2: float | None  # ||w_k - w^t||^2, where it was asked for
    solved: tuple[LocalProblem, Tree]  # the subproblem and the solution w_k, for further measures


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
    schedule: Callable[[int], float] | None = None  # the learning rate of each round, where it changes
    gammas: bool = False  # whether rounds ask how exact the solutions are
    lanes: int = 0  # the most small devices in one call of a program; 0: as many as are fast

    def rate(self, round: int) -> float:
        """Return the learning rate of a round."""
        return self.learning_rate if self.schedule is None else self.schedule(round)

    @quiet
    def solve(self, task: Task, broadcast: Broadcast, shared: Subproblem) -> DeviceReply:
        """Work on the subproblem of a device; `shared` is the part that all devices of the round have in common."""
        own = self.gradient(task.device, shared.anchor) if self.method.needs_gradients else None
        state = self.method.start_device(broadcast.params) if task.state is None else task.state
        solved: list[Work] = []

        def pose(posed: Posed, budget: int) -> tuple[Tree, int]:
            done = self.work(task.device, broadcast.round, shared, posed, budget)
            solved.append(done)
            return to_numpy(done.found), done.steps

        solver = self.solver_for(task.device)
        view = view_device(
            broadcast,
            task.budget,
            state,
            own,
            solver,
            self.rate(broadcast.round),
            pose,
            gradient_at=lambda params: self.gradient(task.device, to_backend(params)),
            loss=lambda: self.loss(task.device, self.method.device_model(broadcast.params, state)),
        )
        reply = checked_reply(self.method, self.method.work(view), state)
        if not solved:
            raise RunError(f"method {self.method.name} must have every device solve a subproblem; work() solved none")
        local, found, _ = solved[0]
        if self.mechanism is not None:
            normals = seeded_normals(self.seed, Purpose.DEVICE_NOISE, broadcast.round, task.device)
            shared_model = self.method.shared(broadcast.params)
            reply = reply._replace(averaged=self.mechanism.update(shared_model, reply.averaged, normals))
        drift2 = self._drift2(found, broadcast.params) if broadcast.wants_drift else None
        return DeviceReply(reply, sum(done.steps for done in solved), drift2, (local, found))

    def _drift2(self, found: Tree, received: Tree) -> float:
        return squared_distance(self.method.shared(to_numpy(found)), self.method.shared(received))

    def work(
        self,
        device: int,
        round: int,
        shared: Subproblem,
        posed: Posed,
        budget: int,
        deadline: Deadline | None = None,
    ) -> Work:
        """Work on the subproblem that a method poses until the budget is spent, or the deadline where there is one."""
        posed = checked_posed(self.method, posed, shared.anchor)
        start = None if posed.start is None else to_backend(posed.start)
        anchor = shared.anchor
        if posed.anchor is not None:
            anchor = to_backend(posed.anchor)
            start = shared.anchor if start is None else start
        linear = None if posed.linear is None else to_backend(posed.linear)
        problem = Subproblem(anchor, place_mu(posed.mu, shared.anchor), linear)
        kind = LocalProblem if deadline is None else partial(TimedProblem, deadline=deadline)
        local = kind(
            model=self.model,
            problem=problem,
            samples=self.samples,
            loaded=self.loaded,
            device=device,
            round=round,
            seed=self.seed,
            budget=budget,
            batch_size=padded_batch(self.samples.size(device), self.batch_size),
            learning_rate=self.rate(round),
            gamma=self.gamma if posed.gamma is None else posed.gamma,
            ahead=self.ahead,
            start_at=start,
        )
        solver = self.solver_for(device)
        if is_library_code(solver):
            return Work(local, *solver.solve(local))
        where = f"solver {solver.name} on device {device} in round {round}"
        with own_code(where):
            answer = solver.solve(local)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise RunError(f"{where} must return (params, steps); got {type(answer).__name__}")
        return Work(local, fitted(answer[0], local.problem.anchor, where), check_steps(answer[1], budget, where))

    def warm_up(self, params: Tree) -> None:
        """Compile what a round needs by letting one device take one step, which is discarded."""
        zeros = jax.tree.map(np.zeros_like, params)
        sent = self.method.send(self.method.start(params), zeros if self.method.needs_gradients else None)
        task = Task(device=0, budget=1, weight=1.0, mass=1.0)
        broadcast = Broadcast(1, params, sent, self.method.subproblem_mu(0.0))
        answer = self.solve(task, broadcast, self.shared(broadcast))
        if self.gammas:
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

    def loss(self, device: int, params: Tree) -> float:
        """Return F_k at `params`."""
        begin, count = int(self.samples.offsets[device]), self.samples.size(device)
        if self.model.host is not None:
            rows = slice(begin, begin + count)
            with self.model.host.at(to_numpy(params)) as model:
                losses, _ = model.losses(np.asarray(self.loaded.x)[rows], np.asarray(self.loaded.y)[rows])
            return float(np.mean(losses, dtype=np.float64))
        program = _loss_program(self.model, self.loaded.block)
        return float(program(to_backend(params), self.loaded.x, self.loaded.y, span(begin, count)))

    def inexactness(self, local: LocalProblem, params: Tree) -> float:
        """Return gamma_k^t of a solution (Definition 2)."""
        program = gradient_norm_program(self.model, self.loaded.block)
        place = span(local.begin, local.count)
        norm, norm_at_start = (
            float(program(at, local.problem, self.loaded.x, self.loaded.y, place)) for at in (params, local.start)
        )
        return inexactness(norm, norm_at_start)


def view_device(
    broadcast: Broadcast,
    budget: int,
    state: Tree,
    gradient: Tree,
    solver: Solver,
    learning_rate: float,
    pose: Callable[[Posed, int], tuple[Tree, int]],
    **asked: Any,
) -> DeviceView:
    """Return a device as its method sees it in a round; `pose` lets it work on a subproblem, wherever it is.

    `asked` are further values that it can provide.
    """
    return DeviceView(
        received=broadcast.params,
        sent=broadcast.sent,
        state=state,
        gradient=gradient,
        mu=broadcast.mu,
        budget=budget,
        learning_rate=learning_rate,
        solver=solver,
        pose=pose,
        round=broadcast.round,
        **asked,
    )


@lru_cache(maxsize=32)
def _loss_program(model: Model, block: int) -> Callable[..., Any]:
    def program(params: Tree, x: jax.Array, y: jax.Array, place: jax.Array) -> jax.Array:
        return device_value_and_gradient(model, params, x, y, place[0], place[1], block)[0]

    return compiled(program, small=model.small)


@lru_cache(maxsize=32)
def _gradient_program(model: Model, block: int) -> Callable[..., Any]:
    if model.host is not None:
        return partial(host_gradient, model.host)

    def program(params: Tree, x: jax.Array, y: jax.Array, place: jax.Array) -> Tree:
        return device_gradient(model, params, x, y, place[0], place[1], block)

    return compiled(program, small=model.small)
