"""How long a device takes, and how many steps it can do in a given time.

A device that does s mini-batch steps is done after

    messages * latency + down / download + up / upload + (samples in s steps) / (samples per second)

seconds. An epoch has ceil(n / b) steps and n samples: the last batch of an epoch is short and takes less time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.traffic import Traffic

__all__ = ["Devices", "samples_in", "seconds_for", "steps_within"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Devices:
    """The listed devices of a round, as the clock sees them; arrays in the order of the round's list."""

    kind: tuple[str, ...]  # the class of each
    samples_per_second: Numbers
    download: Numbers  # bytes per second
    upload: Numbers
    latency: Numbers  # seconds per message


def samples_in(steps: NDArray[np.int64], samples: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """Return how many samples a number of steps uses.

    >>> samples_in(np.array([1, 3, 4]), np.array([25, 25, 25]), 10)  # an epoch is batches of 10, 10 and 5
    array([10, 25, 35])
    """
    per_epoch = np.asarray(steps_per_epoch(samples, batch_size))
    batch = samples if batch_size == 0 else batch_size
    return steps // per_epoch * samples + np.minimum(steps % per_epoch * batch, samples)


def seconds_for(
    steps: NDArray[np.int64], samples: NDArray[np.int64], batch_size: int, devices: Devices, traffic: Traffic
) -> Numbers:
    """Return the seconds from the start of the round until each device's reply has arrived."""
    transfer = traffic.messages * devices.latency + traffic.down / devices.download + traffic.up / devices.upload
    seen = samples_in(steps, samples, batch_size) + traffic.passes * samples
    return transfer + seen / devices.samples_per_second


def steps_within(
    limit: Numbers,
    most: NDArray[np.int64],
    samples: NDArray[np.int64],
    batch_size: int,
    devices: Devices,
    traffic: Traffic,
) -> NDArray[np.int64]:
    """Return the largest number of steps, at most `most`, whose reply arrives within the limit; 0 where none does."""
    per_epoch = np.asarray(steps_per_epoch(samples, batch_size))
    batch = samples if batch_size == 0 else batch_size
    nothing = np.zeros_like(most)
    time = np.maximum(limit - seconds_for(nothing, samples, batch_size, devices, traffic), 0)
    longest = seconds_for(most, samples, batch_size, devices, traffic)
    seen = np.floor(np.minimum(time, longest) * devices.samples_per_second).astype(np.int64)
    steps = np.minimum(seen // samples * per_epoch + seen % samples // batch, most)

    def fits(number: NDArray[np.int64]) -> NDArray[np.bool_]:
        return seconds_for(number, samples, batch_size, devices, traffic) <= limit

    # `seen` may be off by one through rounding; only the time of the reply itself decides
    steps = np.where((steps < most) & fits(steps + 1), steps + 1, steps)
    steps = np.where((steps > 0) & ~fits(steps), steps - 1, steps)
    return np.where(fits(most), most, steps)
