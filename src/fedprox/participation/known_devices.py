"""What the server knows about devices that have taken part, for selection rules that use it.

It is kept only for devices that have been chosen, so that a million others cost nothing, and is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["KnownDevice", "read_known", "update_known", "write_known"]


class KnownDevice(NamedTuple):
    """What is known about one device.

    Attributes:
      last_round: the round in which it was last chosen.
      loss: F_k of the model after that round; None where a real device did not report it.
      seconds: what that round took, on the simulated clock or as a real device measured it; None if neither exists.
    """

    last_round: int
    loss: float | None = None
    seconds: float | None = None


def update_known(
    known: Mapping[int, KnownDevice],
    round: int,
    devices: Iterable[int],
    losses: Mapping[int, float],
    seconds: Iterable[float | None] | None = None,
) -> dict[int, KnownDevice]:
    """Return what is known after a round.

    >>> update_known({}, 1, [4, 2], {2: 0.5})[2]
    KnownDevice(last_round=1, loss=0.5, seconds=None)
    """
    devices = list(devices)
    took = list(seconds) if seconds is not None else [None] * len(devices)
    pairs = zip(devices, took, strict=True)
    return {**known, **{device: KnownDevice(round, losses.get(device), second) for device, second in pairs}}


def write_known(known: Mapping[int, KnownDevice]) -> dict[str, Any]:
    """Return what is known in plain JSON values."""
    return {str(device): list(each) for device, each in known.items()}


def read_known(values: Mapping[str, Any]) -> dict[int, KnownDevice]:
    """Return what `write_known` has written.

    >>> read_known(write_known({3: KnownDevice(7, 0.5)}))
    {3: KnownDevice(last_round=7, loss=0.5, seconds=None)}
    """
    return {int(device): KnownDevice(*each) for device, each in values.items()}
