"""The size of a round's messages, and the work besides the budget, for one device."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Traffic"]


@dataclass(frozen=True)
class Traffic:
    """What one device sends and receives in a round, and what it computes besides its budget."""

    down: int  # bytes
    up: int  # bytes
    messages: int = 2  # both directions together; each adds the network's latency
    passes: int = 0  # over all local samples, for gradients at w^t
