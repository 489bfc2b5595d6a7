"""Work is counted in mini-batch steps.

One epoch over n_k samples with batch size b is ceil(n_k / b) steps; the last batch of an epoch may be short and is
averaged over its own size. Every epoch visits the samples in a fresh order. Batch size 0 stands for the whole local
data set, one step per epoch.

The order of epoch e is the ranking of n_k random words drawn for (seed, round, device): the words are sorted with
their positions packed into the low bits. It depends on nothing else, so a device with a smaller budget takes the same
steps and only stops earlier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, stream

__all__ = ["Piece", "minibatches", "padded_batch", "split_batches", "steps_begun", "steps_per_epoch"]

_SMALL_BATCH = 1024  # rows that are padded without regard to the device, so that few programs are compiled


def steps_per_epoch(samples: NDArray[np.int64] | int, batch_size: int) -> NDArray[np.int64] | int:
    """Return ceil(n_k / b), for one device or for many.

    >>> steps_per_epoch(25, 10), steps_per_epoch(25, 0)
    (3, 1)
    """
    if batch_size == 0:
        return samples * 0 + 1
    return -(-samples // batch_size)


def padded_batch(samples: int, batch_size: int) -> int:
    """Return to how many rows a device's mini-batches are padded: at most 1,024, or twice what the device has.

    It depends on the device alone, so that a real device pads as a simulated one does, with the same bits.

    >>> padded_batch(300, 32), padded_batch(300, 10**9), padded_batch(3000, 10**9), padded_batch(3000, 0)
    (32, 1024, 4096, 0)
    """
    return min(batch_size, max(_SMALL_BATCH, 1 << (samples - 1).bit_length()))


def steps_begun(samples: NDArray[np.int64], batch_size: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the steps of all epochs that each of some devices begins with its budget.

    >>> steps_begun(np.array([25, 25]), 10, np.array([2, 4]))
    array([3, 6])
    """
    per_epoch = np.asarray(steps_per_epoch(samples, batch_size))
    return -(-steps // per_epoch) * per_epoch


class Piece(NamedTuple):
    """Some consecutive steps of a device."""

    rows: NDArray[np.int32]  # (most steps of a piece, batch_size): the samples of each batch, numbered from 0
    first: int  # the steps of the epoch that come before it
    steps: int  # how many of its steps are to be taken


def minibatches(
    samples: int,
    batch_size: int,
    steps: int,
    *,
    seed: int,
    round: int,
    device: int,
    piece: int,
    epochs_at_once: int = 0,
) -> Iterator[Piece]:
    """Yield the mini-batches of a device's first `steps` steps in pieces of at most `piece` steps.

    All pieces have one shape: what is not part of a short batch, or of the piece, is row 0. A piece ends with an epoch
    wherever an epoch fits, and holds as many epochs as fit, or at most `epochs_at_once`.
    """
    per_epoch = int(steps_per_epoch(samples, batch_size))
    fitting = max(1, piece // per_epoch)
    at_once = min(epochs_at_once or fitting, fitting)
    with stream(seed, Purpose.ORDER, round, device) as bits:
        while steps > 0:
            epochs = min(at_once, -(-steps // per_epoch))
            rows = np.zeros((max(piece, per_epoch), batch_size), np.int32)
            _put_orders(rows[: epochs * per_epoch].reshape(epochs, -1)[:, :samples], bits)
            drawn = min(epochs * per_epoch, steps)
            steps -= drawn
            for begin in range(0, drawn, piece):
                yield Piece(_filled(rows[begin : begin + piece], piece), begin, min(drawn - begin, piece))


def split_batches(piece: Piece, samples: int) -> Iterator[NDArray[np.int32]]:
    """Yield the samples of each batch of a piece, of a device with that many.

    >>> [rows.tolist() for rows in split_batches(Piece(np.array([[3, 1], [2, 0], [4, 0]]), 0, 3), samples=5)]
    [[3, 1], [2, 0], [4]]
    """
    batch_size = piece.rows.shape[1]
    per_epoch = int(steps_per_epoch(samples, batch_size))
    for step, rows in enumerate(piece.rows[: piece.steps], start=piece.first):
        yield rows[: samples - step % per_epoch * batch_size]


def _filled(rows: NDArray[np.int32], piece: int) -> NDArray[np.int32]:
    """Return the rows filled up to `piece` steps, so that every call of a compiled loop has one shape."""
    missing = piece - len(rows)
    return np.pad(rows, ((0, missing), (0, 0))) if missing else rows


def _put_orders(rows: NDArray[np.int32], bits: np.random.BitGenerator) -> None:
    """Fill `rows` (epochs, samples) with a permutation of the samples in each row."""
    random: NDArray[np.uint64] = bits.random_raw(rows.size).reshape(rows.shape)
    low_halves = random.view(np.uint32).reshape(*rows.shape, 2)[..., _LOW]
    low_halves[:] = np.arange(rows.shape[1], dtype=np.uint32)
    random.sort(axis=1)
    rows[:] = low_halves


_LOW = 0 if sys.byteorder == "little" else 1
