"""What runs on a worker of the cluster: a long-lived process that holds the population and warm compiled programs.

It solves for a chunk of a round at a time, as the local engine does with one worker, and sends back the sum over the
chunk, which is a complete subtree of the merge tree. Nothing here calls Ray: an actor is an ordinary object, on one
core. An error that comes out of a user's file becomes a sentence here: its traceback does not leave the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprox import __version__
from fedprox.config.part_search import add_folders
from fedprox.core.compilation import prepare
from fedprox.core.errors import DataError
from fedprox.core.own_code import own_hooks
from fedprox.core.threads import Workers
from fedprox.core.trees import Tree
from fedprox.engines.build import Blueprint
from fedprox.engines.device_side import Broadcast, Task
from fedprox.engines.local import LocalEngine
from fedprox.engines.outcome import RoundRequest, Shares
from fedprox.methods import Reply
from fedprox.population import Population
from fedprox.population.folder import open_population

__all__ = ["ChunkAnswer", "DeviceActor", "versions"]


class ChunkAnswer(NamedTuple):
    """The results of the devices of a chunk; lists have one entry per position, None for a device not asked."""

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

    def __init__(self, search: Sequence[str] = ()) -> None:
        """Search these folders too for the modules of custom parts, after those that are searched already."""
        add_folders(search)
        os.environ["NPROC"] = "1"  # XLA's threads; read when JAX starts its backend, which it has not yet
        prepare()
        self._engine: LocalEngine | None = None

    @own_hooks()
    def build(self, blueprint: Blueprint, population: Population | str, params: Tree) -> dict[str, str]:
        """Open or take the population, compile, and return the versions of what computes here."""
        engine = LocalEngine(blueprint.build(_population(population)), Workers(1))
        engine.compile(params)
        self._engine = engine
        return versions()

    @own_hooks()
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
        engine, remembered = self._worker(), iter(states)
        own = [None if task is None else task._replace(state=next(remembered, None)) for task in tasks]
        outcome = engine.solve(RoundRequest(own, broadcast, _never_asked, gammas=gammas, every_reply=every_reply))
        replies = None
        if outcome.replies is not None:
            replies = [None if received is None else received.reply for received in outcome.replies]
        chunk = ChunkAnswer(
            averaged=outcome.averaged,
            summed=outcome.summed,
            replies=replies,
            steps=outcome.steps,
            drift2=outcome.drift2,
            gammas=outcome.gammas or [None] * len(tasks),
            seconds=time.perf_counter() - started - outcome.gamma_seconds,
            gamma_seconds=outcome.gamma_seconds,
        )
        if not stateful:
            return chunk
        after = [
            before.state if now is None else now
            for before, now in zip(own, outcome.states or [None] * len(own), strict=True)
            if before is not None
        ]
        return (chunk, *after)

    @own_hooks()
    def gradient(self, params: Tree, tasks: Sequence[Task | None]) -> Tree:
        """Return the sum over the chunk's subtree of weight * grad F_k(params)."""
        return self._worker().mean_gradient(tasks, params)

    def _worker(self) -> LocalEngine:
        if self._engine is None:
            raise RuntimeError("an actor is asked to work before it is built")
        return self._engine


def _never_asked(*_: Any) -> Shares:
    raise RuntimeError("a chunk knows the weights of its devices")


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
