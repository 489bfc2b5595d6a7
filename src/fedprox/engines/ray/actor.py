"""What runs on a worker of the cluster: a long-lived process that holds the population and warm compiled programs.

It solves for a chunk of a round at a time and sends back the sum over the chunk, which is a whole subtree of the merge
tree. Nothing here calls Ray: an actor is an ordinary object, on one core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprox import __version__
from fedprox.core.compilation import prepare
from fedprox.core.errors import DataError
from fedprox.core.trees import Tree, quiet, scale
from fedprox.engines.build import Blueprint
from fedprox.engines.device_side import Broadcast, DeviceReply, DeviceSide, Task
from fedprox.methods import Reply
from fedprox.methods.merging import ReplySums, RoundSum
from fedprox.population import Population
from fedprox.population.folder import open_population
from fedprox.population.loaded_samples import to_backend

__all__ = ["ChunkAnswer", "DeviceActor", "versions"]


class ChunkAnswer(NamedTuple):
    """What the devices of a chunk gave; lists have one entry per position, None for a device not asked."""

    averaged: Tree  # the sum over the chunk's subtree of weight * reply
    summed: Tree
    replies: list[Reply | None] | None  # in place of the sums, where every reply is asked for
    steps: list[int]
    drift2: list[float | None]
    gammas: list[float | None]
    seconds: float  # of the solves
    gamma_seconds: float


class DeviceActor:
    """Works for the devices of one run."""

    def __init__(self) -> None:
        os.environ["NPROC"] = "1"  # XLA's threads; read when JAX starts its backend, which it has not yet
        prepare()
        self._device: DeviceSide | None = None

    def build(self, blueprint: Blueprint, population: Population | str, params: Tree) -> dict[str, str]:
        """Open or take the population, compile, and return the versions of what computes here."""
        device = blueprint.build(_population(population))
        device.warm_up(params)
        self._device = device
        return versions()

    @quiet
    def solve(
        self,
        broadcast: Broadcast,
        tasks: Sequence[Task | None],
        gammas: bool,
        every_reply: bool,
        stateful: bool,
        *states: Tree,
    ) -> Any:
        """Solve for a chunk; `states` are what the devices asked remember, None for one that has not worked yet.

        Return the chunk's answer, followed for a `stateful` method by what each device asked now remembers.
        """
        started = time.perf_counter()
        device, remembered = self._side(), iter(states)
        shared = device.shared(broadcast)
        sums = ReplySums(len(tasks))
        replies: list[Reply | None] | None = [None] * len(tasks) if every_reply else None
        answers: list[DeviceReply | None] = [None] * len(tasks)
        after: list[Tree] = []
        for position, task in enumerate(tasks):
            if task is not None:
                own = task._replace(state=next(remembered, None))
                answers[position] = answer = device.solve(own, broadcast, shared)
                after.append(own.state if answer.reply.state is None else answer.reply.state)
                if replies is not None:
                    replies[position] = answer.reply._replace(state=None)
                else:
                    sums.add(position, *own.weighted(answer.reply))
        clock = time.perf_counter()
        measured = [device.inexactness(*answer.solved) if answer and gammas else None for answer in answers]
        averaged, summed = sums.result()
        chunk = ChunkAnswer(
            averaged=averaged,
            summed=summed,
            replies=replies,
            steps=[answer.steps if answer else 0 for answer in answers],
            drift2=[answer and answer.drift2 for answer in answers],
            gammas=measured,
            seconds=clock - started,
            gamma_seconds=time.perf_counter() - clock if gammas else 0.0,
        )
        return (chunk, *after) if stateful else chunk

    @quiet
    def gradient(self, params: Tree, tasks: Sequence[Task | None]) -> Tree:
        """Return the sum over the chunk's subtree of weight * grad F_k(params)."""
        device, at = self._side(), to_backend(params)
        total = RoundSum(len(tasks))
        for position, task in enumerate(tasks):
            if task is not None:
                total.add(position, scale(device.gradient(task.device, at), task.weight))
        return total.result()

    def _side(self) -> DeviceSide:
        if self._device is None:
            raise RuntimeError("an actor is asked to work before it is built")
        return self._device


def versions() -> dict[str, str]:
    """Return the versions that the bits of a result depend on."""
    return {"fedprox": __version__, "jax": jax.__version__, "numpy": np.__version__}


def _population(given: Population | str) -> Population:
    if isinstance(given, Population):
        return given
    try:
        return open_population(given)
    except DataError as error:
        raise DataError(f"every node of the cluster must have the population at the same path: {error}") from None
