"""The size of a round's messages and of the work that comes beside the budget, for one device."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Traffic"]


@dataclass(frozen=True)
class Traffic:
    """What one device sends and receives in a round, and what it computes beside its budget."""

    down: int  # bytes
    up: int  # bytes
    messages: int = 2  # in both directions together; each takes the network's latency
    passes: int = 0  # over all local samples, for gradients at w^t
