"""Which devices are measured when not all are, and how many devices each of them represents.

Every measure is a mean over devices with masses p_k, so devices are drawn with probability proportional to their
size: with sizes that follow a power law, a uniform draw would miss the few devices that hold most of the samples. With

    pi_k = min(1, c n_k),    sum_k pi_k = the number of devices measured,

the devices with pi_k = 1 are measured for certain. The others are drawn by systematic sampling along a random order,
never twice, and a device represents 1 / pi_k devices (Horvitz and Thompson, 1952).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, words

__all__ = ["MeasuredSample", "all_devices", "draw_measured"]


@dataclass(frozen=True)
class MeasuredSample:
    """The measured devices: first those that are certain to be, then the others in random order."""

    devices: NDArray[np.int64]
    weight: NDArray[np.float64]  # 1 / pi_k
    certain: int  # how many are certain to be measured
    unseen: float  # the share of the others that was not drawn


def all_devices(count: int) -> MeasuredSample:
    """Return all of `count` devices, each of which represents itself."""
    return MeasuredSample(np.arange(count), np.ones(count), count, 0.0)


def draw_measured(sizes: NDArray[np.int64], count: int, seed: int) -> MeasuredSample:
    """Draw `count` devices, fewer than there are.

    >>> sample = draw_measured(np.array([70, 10, 10, 10]), 2, seed=0)
    >>> int(sample.devices[0]), sample.weight.tolist(), sample.certain
    (0, [1.0, 3.0], 1)
    """
    certain = _certain(sizes, count)
    rest = np.flatnonzero(~certain)
    left = count - int(certain.sum())
    random = words(len(rest) + 1, seed, Purpose.MEASURED_DEVICES)
    order = rest[np.argsort(random[1:], kind="stable")]
    reach = np.cumsum(sizes[order]) / sizes[order].sum() * left
    start = float(random[0] >> np.uint64(11)) / 2**53
    drawn = order[np.searchsorted(reach[:-1], start + np.arange(left), side="right")]
    share = left * sizes[drawn] / sizes[rest].sum()  # pi_k
    return MeasuredSample(
        devices=np.concatenate([np.flatnonzero(certain), drawn]),
        weight=np.concatenate([np.ones(count - left), 1.0 / share]),
        certain=count - left,
        unseen=1.0 - left / len(rest),
    )


def _certain(sizes: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Return which devices have pi_k = 1; each one found leaves a larger share to the others."""
    certain = np.zeros(len(sizes), bool)
    while True:
        left = count - int(certain.sum())
        more = ~certain & (left * sizes >= sizes[~certain].sum())
        if not more.any():
            return certain
        certain |= more
