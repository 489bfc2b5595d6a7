"""What a device remembers, kept where it last worked.

A control variate or a dual is as large as the model, so it does not travel to the driver and back in every round. It
stays in the object store of the node whose actor made it; the driver holds a reference. It outlives that actor, but not
that node. So the driver also keeps its origin: the previous state, the task and the broadcast, back to the last
checkpoint, when it took a copy. A lost state is computed again from its origin, with the same draws and hence the same
bits. A checkpoint makes earlier origins unnecessary. Where there is none for long, the driver takes a copy by itself:
otherwise the states and models that origins hold would grow with the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedprox.core.errors import RunError
from fedprox.core.trees import Tree
from fedprox.engines.device_side import Task
from fedprox.engines.ray.actor_pool import ray_message

__all__ = ["Origin", "RemoteState", "States"]

_TRIES = 4  # how often a state may be lost again between its repair and its copy
_MOST_ORIGINS = 32  # of a state, one before another


@dataclass(frozen=True)
class Origin:
    """The origin of a state."""

    before: RemoteState | None  # None: the device had not worked yet
    task: Task  # without its state
    broadcast: Any  # the reference to the round's Broadcast


@dataclass
class RemoteState:
    """The state of one device: where it is, and a copy or an origin to restore it from."""

    reference: Any
    home: int | None  # the actor that made it
    origin: Origin | None = None
    copy: Tree = None


class States:
    """Fetches states, and restores lost ones.

    Args:
      solve: `solve(task, broadcast, state) -> reference`, the state of a device after a task.
    """

    def __init__(self, ray: Any, solve: Callable[[Task, Any, RemoteState | None], Any]) -> None:
        self._ray = ray
        self._solve = solve

    def take(self, state: Any) -> RemoteState | None:
        """Return a state as a remote one; a tree, as a checkpoint holds it, goes to the object store."""
        if isinstance(state, RemoteState) and _has_many_origins(state):
            self._copy(state)
        if state is None or isinstance(state, RemoteState):
            return state
        return RemoteState(self._ray.put(state), None, copy=state)

    def secure(self, states: Mapping[int, Any]) -> dict[int, Tree]:
        """Return all states as trees, and keep copies, so that nothing before this moment is needed again."""
        return {device: self._copy(state) for device, state in states.items()}

    def repair(self, state: RemoteState | None) -> None:
        """Restore a state if it is lost, and those that it came from."""
        lost: list[RemoteState] = []
        while state is not None and self._is_lost(state):
            lost.append(state)
            state = state.origin.before if state.origin else None
        for each in reversed(lost):
            if each.origin is None:
                each.reference = self._ray.put(each.copy)
            else:
                each.reference = self._solve(each.origin.task, each.origin.broadcast, each.origin.before)
                each.home = None

    def _copy(self, state: Any) -> Tree:
        if not isinstance(state, RemoteState):
            return state
        if state.copy is None:
            shared = self._fetch(state)
            state.copy = jax.tree.map(np.array, shared)  # own memory: the store's is freed with the reference
            state.origin = None
        return state.copy

    def _fetch(self, state: RemoteState) -> Tree:
        for _ in range(_TRIES):
            self.repair(state)
            try:
                return self._ray.get(state.reference)
            except self._ray.exceptions.ObjectLostError as error:  # with its node, since it was repaired
                lost = ray_message(error)
        raise RunError(f"the state of a device was lost {_TRIES} times before it could be copied: {lost}")

    def _is_lost(self, state: RemoteState) -> bool:
        try:
            self._ray.get(state.reference)
        except self._ray.exceptions.ObjectLostError:
            return True
        return False


def _has_many_origins(state: RemoteState) -> bool:
    count, origin = 0, state.origin
    while origin is not None and count < _MOST_ORIGINS:
        count, origin = count + 1, origin.before.origin if origin.before is not None else None
    return count == _MOST_ORIGINS
