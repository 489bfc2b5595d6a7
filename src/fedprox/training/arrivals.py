"""The interface between the arrival server and remote devices that work at their own pace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fedprox.methods import Reply

__all__ = ["Arrival", "Arrivals", "Assignment", "Choose"]


class Assignment(NamedTuple):
    """Work that a device was asked for.

    Attributes:
      order: how many devices were asked before it.
      version: the number of the model that it was given.
      draws: how many replies it counts for.
      budget, epochs: what it is given, in mini-batch steps and in epochs.
    """

    order: int
    version: int
    device: int
    samples: int
    draws: int
    budget: int
    epochs: float


@dataclass(frozen=True)
class Arrival:
    """The outcome of an assignment: a reply, or why there is none.

    Attributes:
      is_over: whether it is settled; False if the server has stopped waiting for a reply that may still arrive.
      was_cut_off: whether a deadline ended the work.
      columns: further fields of `devices.jsonl`.
    """

    order: int
    reply: Reply | None
    problem: str | None = None
    is_over: bool = True
    steps: int = 0
    was_cut_off: bool = False
    gamma: float | None = None
    drift2: float | None = None
    bytes: int = 0
    columns: Mapping[str, Any] = field(default_factory=dict)


Choose = Callable[[Collection[int]], Sequence[Assignment]]
"""Which devices to ask next, of those that can be asked."""


class Arrivals(Protocol):
    """Devices that are asked one by one and reply when they are done."""

    def next(self, under_way: Mapping[int, Assignment], choose: Choose) -> Assignment | Arrival | None:
        """Return the next event: a device was asked, or its work has ended.

        Every event is kept on disk before it is returned. What was kept before a server ended is returned again, from
        the position of its checkpoint on. Then assignments in progress whose message is lost are sent again, and free
        places go to the devices that `choose` returns. None: no device is at work, and none can be asked now.
        """

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in plain JSON values."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore what `values` returned."""

    def take_late(self) -> int:
        """Return how many late replies were refused since the last call."""
