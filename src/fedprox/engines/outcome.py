"""What the loop passes to an engine for a round, and what every engine returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.core.trees import Tree
from fedprox.engines.device_side import Broadcast, Task
from fedprox.engines.task_list import TaskList
from fedprox.methods import Received

__all__ = ["Engine", "RoundOutcome", "RoundRequest", "Shares"]


class Shares(NamedTuple):
    """Which replies are merged, with which weights, once all are in; arrays in the order of the round's list."""

    straggler: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class RoundRequest:
    """What the devices of a round are to do.

    Attributes:
      tasks: in the order of the round's list; None is a device that is not asked for its result.
      broadcast: what all of them are sent.
      settle: `settle(replied, cut_off)` gives the shares if some did not reply, or were cut off by a deadline. The
        weights of the tasks apply if all reply.
      gammas: whether to measure how exact each solution is (Definition 2).
      every_reply: whether to return each reply instead of their sums.
      merge: gives the model and the server's memory after a merge of replies, and changes nothing.
    """

    tasks: Sequence[Task | None]
    broadcast: Broadcast
    settle: Callable[[NDArray[np.bool_], NDArray[np.bool_]], Shares]
    gammas: bool = False
    every_reply: bool = False
    merge: Callable[[Sequence[Received]], tuple[Tree, Tree]] | None = None


@dataclass(frozen=True)
class RoundOutcome:
    """The outcome of a round, in the order of its list; None stands for a device not asked."""

    averaged: Tree  # sum of weight * reply over those kept; None if there is none, or every reply is given
    summed: Tree  # sum of p_k * reply
    states: list[Any]  # what each device remembers, or where the engine keeps it; [] where that is nothing for all
    steps: list[int]
    drift2: list[float | None]  # where it was asked for
    replied: NDArray[np.bool_]  # who gave a reply that can be used
    cut_off: NDArray[np.bool_]  # whose work a deadline ended
    gammas: list[float | None] | None = None  # gamma_k^t, where they were asked for
    gamma_seconds: float = 0.0  # how much longer the round took for them
    replies: list[Received | None] | None = None  # where every reply was asked for
    bytes: list[int] | None = None  # that crossed a network, where the engine counts them
    columns: Mapping[str, Any] = field(default_factory=dict)  # further fields of `devices.jsonl`
    problems: Mapping[int, str] = field(default_factory=dict)  # device -> why its reply cannot be used
    shortfall: str | None = None  # why the round must be repeated, as a rule; None: it need not

    @classmethod
    def empty(cls, request: RoundRequest) -> RoundOutcome:
        """Return the outcome of a round before the first reply; all devices that are asked will reply."""
        count = len(request.tasks)
        return cls(
            averaged=None,
            summed=None,
            states=[None] * count,
            steps=[0] * count,
            drift2=[None] * count,
            replied=TaskList.of(request.tasks).asked.copy(),
            cut_off=np.zeros(count, bool),
            gammas=[None] * count if request.gammas else None,
            replies=[None] * count if request.every_reply else None,
        )


class Engine(ABC):
    """Where the devices of a round do their work."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many devices can work at the same time."""

    @abstractmethod
    def compile(self, params: Tree) -> None:
        """Prepare for the first round."""

    @abstractmethod
    def solve(self, request: RoundRequest) -> RoundOutcome:
        """Let every task's device work on its subproblem."""

    def solve_versions(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Let devices work that were given different models: what `solve` returns for each request."""
        return [self.solve(request) for request in requests]

    @abstractmethod
    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return sum of weight * grad F_k(params) over the tasks; None if there is no gradient."""

    def secure(self, states: Mapping[int, Any]) -> Mapping[int, Tree]:
        """Return what devices remember (by device, as in `RoundOutcome.states`) as trees for a checkpoint."""
        return states

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the engine, in plain JSON values."""
        return {}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore what `values` returned; there may be other entries."""
        return

    def summary(self) -> dict[str, Any]:
        """Return further fields of the run's summary."""
        return {}

    def close(self) -> None:
        """Release the engine's resources."""
        return
