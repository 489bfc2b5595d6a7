"""Servers: what decides when the model moves, and with which replies.

The loop gets the next round from a server: which devices took part, and the outcome. The synchronous server plans a
round and waits for it; over-selection is a plan of its kind. The event server takes replies as they arrive on the
simulated clock, the arrival server those of real devices.
"""

from __future__ import annotations

from collections.abc import Callable

from fedprox.engines import Engine
from fedprox.participation.sampling import Losses
from fedprox.training.merge_step import MergeStep
from fedprox.training.run_parts import RunParts
from fedprox.training.servers.arrival_server import ArrivalServer
from fedprox.training.servers.event_server import EventServer
from fedprox.training.servers.settled_round import Server, SettledRound
from fedprox.training.servers.synchronous import SynchronousServer

__all__ = ["ArrivalServer", "EventServer", "Server", "SettledRound", "SynchronousServer", "build_server"]


def build_server(
    parts: RunParts, engine: Engine, merge_step: MergeStep, save: Callable[[], None], losses: Losses
) -> Server:
    """Return the server that the config names; `save` writes a checkpoint, `losses` gives devices' current losses."""
    if parts.arrivals is not None:
        return ArrivalServer(parts, parts.arrivals, merge_step, save)
    if parts.config.systems.runs_on_events and parts.clock is not None:
        return EventServer(parts, parts.clock, engine, merge_step)
    return SynchronousServer(parts, engine, merge_step, save, losses)
