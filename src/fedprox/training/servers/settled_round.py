"""The interface between the loop and a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fedprox.engines import RoundOutcome
from fedprox.training.plan import RoundPlan

__all__ = ["Server", "SettledRound"]


class SettledRound(NamedTuple):
    """A round that is over, before its replies are merged."""

    plan: RoundPlan  # as it came out
    outcome: RoundOutcome
    repeated: Sequence[dict[str, str]] = ()  # why it had to be repeated, once for each time: device -> its problem


class Server(Protocol):
    """What decides when the model moves, and with which replies."""

    def next_round(self) -> SettledRound:
        """Let devices work until the model can move, from version t to t + 1."""

    def resume(self) -> None:
        """Continue from the state of the run, which was restored from a checkpoint."""
