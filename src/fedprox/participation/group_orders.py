"""The mini-batches of many devices in a round, drawn at once.

They are those that `fedprox.participation.budget.minibatches` draws for one device after another, number by number:
the order of an epoch is the ranking of its n_k random words. The words of all devices come out of one computation, and
all epochs are sorted as the rows of one matrix.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, words_of_devices
from fedprox.participation.budget import steps_per_epoch

__all__ = ["GroupOrders", "draw_group_orders", "rows_needed"]

Numbers = NDArray[np.int64]


class GroupOrders(NamedTuple):
    """The mini-batches of some devices, one device after another."""

    rows: NDArray[np.int32]  # (capacity, batch_size): each device's samples are numbered from 0
    begins: Numbers  # (devices,) the row of each device's first mini-batch


def rows_needed(samples: Numbers, batch_size: int, steps: Numbers) -> Numbers:
    """Return how many rows each device takes: those of all epochs that it begins.

    >>> rows_needed(np.array([25, 25]), 10, np.array([2, 4]))
    array([3, 6])
    """
    per_epoch = np.asarray(steps_per_epoch(samples, batch_size))
    return -(-steps // per_epoch) * per_epoch


def draw_group_orders(
    samples: Numbers,
    batch_size: int,
    steps: Numbers,
    *,
    seed: int,
    round: int | Numbers,
    devices: Numbers,
    capacity: int,
) -> GroupOrders:
    """Draw the mini-batches of the first steps of each device, in one round or each in its own.

    What no mini-batch fills is row 0.
    """
    per_epoch = np.asarray(steps_per_epoch(samples, batch_size))
    epochs = -(-steps // per_epoch)
    needed = epochs * per_epoch
    begins = np.cumsum(needed) - needed
    words, first_word = words_of_devices(epochs * samples, seed, Purpose.ORDER, round, devices)
    # one line for each epoch of each device
    epoch = np.arange(epochs.sum()) - np.repeat(np.cumsum(epochs) - epochs, epochs)
    size, from_word, to_row = (np.repeat(each, epochs) for each in (samples, first_word, begins))
    from_word += epoch * size
    to_entry = (to_row + epoch * np.repeat(per_epoch, epochs)) * batch_size
    rows = np.zeros((capacity, batch_size), np.int32)
    entry = np.arange(samples.max(initial=0))
    inside = entry < size[:, None]
    sources = from_word[:, None] + entry
    keys = words[np.minimum(sources, len(words) - 1)]
    low_halves = keys.view(np.uint32).reshape(*keys.shape, 2)[..., _LOW]
    low_halves[:] = entry
    keys[~inside] = _LAST
    keys.sort(axis=1)
    rows.reshape(-1)[(to_entry[:, None] + entry)[inside]] = low_halves[inside]
    return GroupOrders(rows, begins)


_LOW = 0 if sys.byteorder == "little" else 1
_LAST = np.uint64(2**64 - 1)  # no other key is as large: its low half would have to be a sample's number
