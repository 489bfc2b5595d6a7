"""The Ray engine: local problems are solved by actors of a Ray cluster.

Per round the model goes to the object store once, chunks of devices go to free actors, and sums of complete subtrees of
the merge tree come back. So the trajectory is, bit for bit, that of the local engine, whatever the number of actors and
whichever actor is lost, as long as all nodes have the same kind of processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedprox.config.part_search import folders
from fedprox.core.errors import ConfigError, RunError
from fedprox.core.trees import Tree
from fedprox.engines.build import Blueprint
from fedprox.engines.device_side import Task
from fedprox.engines.outcome import Engine, RoundOutcome, RoundRequest
from fedprox.engines.ray.actor import DeviceActor, versions
from fedprox.engines.ray.actor_pool import Call, Pool, ray_message
from fedprox.engines.ray.chunks import Chunk, chunk_level, chunks
from fedprox.engines.ray.cluster import Cluster
from fedprox.engines.ray.device_states import Origin, RemoteState, States
from fedprox.methods import Method
from fedprox.methods.merging import ReplySums, RoundSum
from fedprox.population import Population, Samples

__all__ = ["RayEngine"]


class RayEngine(Engine):
    """Runs the devices' side of a round on a Ray cluster."""

    def __init__(self, cluster: Cluster, blueprint: Blueprint, population: Population, method: Method) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        self._method = method
        self._pool: Pool | None = None
        self._stateful = False
        self._step_seconds = 1.0  # of a mini-batch step in the last round; long, as long as it is not known
        self._states = States(self._ray, self._state_after)
        self._blueprint = self._put(blueprint, "`model`, `method` and `solver` must be objects that Ray can send")
        self._population = self._put(
            population.folder or _training_part(population),
            "a population that is not a folder must fit into Ray's object store",
        )

    @property
    def workers(self) -> int:
        """The number of actors."""
        return self._cluster.workers

    def compile(self, params: Tree) -> None:
        """Start the actors, and wait until each has its data and its compiled programs."""
        at = self._ray.put(params)
        kind = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(
            DeviceActor
        )

        def start() -> tuple[Any, Any]:
            actor = kind.remote(folders())
            return actor, actor.build.remote(self._blueprint, self._population, at)

        self._stateful = self._method.start_device(params) is not None
        self._pool = Pool(self._cluster, self.workers, start, _check_versions)
        self._pool.wait_until_ready()

    def solve(self, request: RoundRequest) -> RoundOutcome:
        """Let every task's device work on its subproblem."""
        tasks, broadcast = request.tasks, request.broadcast
        sent = self._ray.put(broadcast)
        work = sum(task.budget for task in tasks if task is not None)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(broadcast.params))
        # a state stays with its actor, so that it need not travel: devices that remember something go one by one
        level = 0 if self._stateful else chunk_level(len(tasks), self.workers, work * self._step_seconds, size)
        parts = [part for part in chunks(tasks, level) if part.asked]
        befores = [[self._states.take(task.state) for _, task in part.asked] for part in parts]
        asked = request.gammas, request.every_reply
        calls = [self._solve_call(*each, sent, *asked) for each in zip(parts, befores, strict=True)]
        sums = ReplySums(len(tasks), level)
        answer = RoundOutcome.empty(request)
        seconds = gamma_seconds = 0.0
        for done in self._actors.run(calls):
            part, given = parts[done.position], done.answer
            if answer.replies is None:
                sums.add(part.index, given.averaged, given.summed)
            else:
                for position, task in part.asked:
                    at = position - part.span.start
                    answer.replies[position] = task.received(given.replies[at], given.steps[at])
            answer.steps[part.span] = given.steps
            answer.drift2[part.span] = given.drift2
            seconds += given.seconds
            if answer.gammas is not None:
                answer.gammas[part.span] = given.gammas
                gamma_seconds += given.gamma_seconds / self.workers  # they measure side by side
            for reference, before, (position, task) in zip(done.more, befores[done.position], part.asked, strict=False):
                answer.states[position] = RemoteState(
                    reference, done.actor, Origin(before, task._replace(state=None), sent)
                )
        if work:
            self._step_seconds = seconds / work
        averaged, summed = sums.result()
        return replace(answer, averaged=averaged, summed=summed, gamma_seconds=gamma_seconds)

    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return sum of weight * grad F_k(params) over the tasks."""
        at = self._ray.put(params)
        level = chunk_level(len(tasks), self.workers)
        parts = [part for part in chunks(tasks, level) if part.asked]
        total = RoundSum(len(tasks), level)

        def call(part: Chunk) -> Call:
            return Call("gradient", lambda: (at, part.bare), part.work)

        for done in self._actors.run([call(part) for part in parts]):
            total.add(parts[done.position].index, done.answer)
        return total.result()

    def secure(self, states: Mapping[int, Any]) -> Mapping[int, Tree]:
        """Return what devices remember, and keep a copy of it."""
        return self._states.secure(states)

    def close(self) -> None:
        """End the actors; the cluster is closed by the code that opened it."""
        if self._pool is not None:
            self._pool.close()

    @property
    def _actors(self) -> Pool:
        if self._pool is None:
            raise RuntimeError("the engine is asked to work before it is compiled")
        return self._pool

    def _solve_call(
        self, part: Chunk, before: Sequence[RemoteState | None], sent: Any, gammas: bool, every_reply: bool
    ) -> Call:
        def arguments() -> tuple[Any, ...]:
            states = (state and state.reference for state in before)
            return (sent, part.bare, gammas, every_reply, self._stateful, *states)

        def repair() -> None:
            for state in before:
                self._states.repair(state)

        home = next((state.home for state in before if state is not None), None)
        return Call("solve", arguments, part.work, 1 + len(before) * self._stateful, home, repair)

    def _state_after(self, task: Task, sent: Any, before: RemoteState | None) -> Any:
        """Repeat an earlier task of a device, and return the reference to what it then remembers."""
        call = self._solve_call(Chunk(0, 0, (task,)), [before], sent, gammas=False, every_reply=False)
        return self._actors.anywhere(call)[1]

    def _put(self, value: Any, rule: str) -> Any:
        try:
            return self._ray.put(value)
        except Exception as error:  # serialisation raises whatever an object's own code raises
            raise ConfigError(f"{rule}; got {type(error).__name__}: {ray_message(error)}") from None


def _training_part(population: Population) -> Population:
    """Return what an actor needs of a population: the training samples, and what the model may need."""
    train, rows = population.train, population.test.x[:0]
    no_tests = Samples(rows, population.test.y[:0], np.zeros_like(train.offsets))
    return Population(train, no_tests, population.classes, None, population.extras)


def _check_versions(theirs: Mapping[str, str]) -> None:
    ours = versions()
    for name, version in ours.items():
        if theirs[name] != version:
            raise RunError(f"every node of the Ray cluster must have {name} {version}; one has {theirs[name]}")
