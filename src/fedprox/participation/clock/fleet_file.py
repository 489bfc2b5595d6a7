"""A fleet of measured devices as a profile: each device of a population is one of the lines of a file.

The lines are those of a trace (`fedprox.participation.clock.trace`), and `fedprox fleet import` writes them. A trace
needs a line for every device; here device k is line

    words(seed, k)[0] mod (number of lines)

so that a population of any size, even a million devices, can be made of a few thousand measured ones. Devices with the
same line are available at the same times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, words_of_devices
from fedprox.participation.clock.timing import Devices
from fedprox.participation.clock.trace import Trace

__all__ = ["FleetDevices", "is_fleet_file"]


def is_fleet_file(name: str) -> bool:
    """Return whether `systems.profile` names a file of measured devices, not one of classes.

    >>> is_fleet_file("flash.jsonl"), is_fleet_file("phones-2020")
    (True, False)
    """
    return name.endswith(".jsonl")


@dataclass(frozen=True)
class FleetDevices:
    """The devices of a fleet file, for one seed."""

    trace: Trace
    seed: int

    def at(self, devices: NDArray[np.int64], round: int) -> Devices:
        """Return what the clock needs to know about devices in a round."""
        return self.trace.at(self.lines(devices), round)

    def seconds_left(self, devices: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Return for how long each device stays available; 0 for an unavailable one."""
        return self.trace.seconds_left(self.lines(devices), now)

    def stays(self, device: int, now: float) -> float:
        """Return for how long one device stays available."""
        return self.trace.stays(int(self.lines(np.array([device]))[0]), now)

    def lines(self, devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the line of each device, counted from 0."""
        drawn, begins = words_of_devices(np.ones_like(devices), self.seed, Purpose.FLEET_LINE, 0, devices)
        return (drawn[begins] % np.uint64(len(self.trace.kind))).astype(np.int64)
