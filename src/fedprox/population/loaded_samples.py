"""Samples as arrays that compiled programs read in place.

On a CPU the memory of a large population is shared, not copied, where its alignment allows it (memory-mapped columns
do); on an accelerator the samples are copied to it once. A small population is copied and padded, so that populations
of about the same size share compiled programs, and so that rows fill whole lines of the cache where that helps the
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.kernels import SMALL
from fedprox.core.operation_count import count_operations
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.models.parameter_shapes import parameter_shapes
from fedprox.population import Samples

__all__ = ["LoadedSamples", "pad", "scalar", "to_backend"]


@dataclass(frozen=True)
class LoadedSamples:
    """The samples of all devices where the programs run."""

    x: jax.Array
    y: jax.Array
    block: int  # rows that are taken at once when a device is walked
    typical: int  # about the rows of a typical device, at once where the cache does not matter

    @classmethod
    def of(cls, samples: Samples, model: Model) -> LoadedSamples:
        """Hand samples to JAX, for a model to walk."""
        if len(samples) >= 2**31:
            raise DataError(f"a population must have fewer than 2^31 samples; got {len(samples)}")
        x, y = (jax.device_put(_pad(array, _rows(samples))) for array in (_wide_rows(samples, model), samples.y))
        typical = _typical(samples)
        return cls(x, y, _block(samples, model, typical), typical)


def to_backend(tree: Tree) -> Tree:
    """Return the tree with its leaves where the programs run."""
    return _identity(tree)


@jax.jit
def _identity(tree: Tree) -> Tree:
    """Return the arguments, which a compiled program takes over in a fifth of the time of `jax.device_put`."""
    return tree


@lru_cache(maxsize=64)
def scalar(value: float) -> jax.Array:
    """Return a number where the programs run; one that is used repeatedly is transferred once."""
    return jax.device_put(np.float32(value))


def pad(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column with zeros at its end, so that columns have few lengths and few programs are compiled."""
    return _pad(column, _padded_length(len(column)))


def _pad(array: NDArray[Any], rows: int) -> NDArray[Any]:
    if len(array) == rows:
        return array
    return np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), array.dtype)])


def _wide_rows(samples: Samples, model: Model) -> NDArray[Any]:
    """Return x with the columns of zeros that make loops of the model fast, unless that is a copy of much memory."""
    if model.wide is None or jax.default_backend() != "cpu" or not len(samples) or not _is_copied(samples):
        return samples.x
    flat = samples.x.reshape(len(samples), -1)
    return np.pad(flat, ((0, 0), (0, model.wide.columns - flat.shape[1])))


def _rows(samples: Samples) -> int:
    """Return how many rows the programs are given: padded, unless that is a copy of much memory.

    There are at least two: with a single row XLA knows which one is meant and does not use the orders, and it aborts
    the process over a single kernel with an unused array.
    """
    if not len(samples):
        return 0
    return _padded_length(len(samples)) if _is_copied(samples) else max(len(samples), 2)


def _is_copied(samples: Samples) -> bool:
    """Return whether the samples are copied to be padded."""
    return _padded_length(len(samples)) * samples.x[:1].nbytes <= _COPIED


def _typical(samples: Samples) -> int:
    """Return about the number of rows of a typical device, so that little is computed in vain."""
    median = max(int(np.median(np.diff(samples.offsets))), 1)
    return min(max(8, min(SMALL, _floor(median))), max(len(samples), 1))


def _block(samples: Samples, model: Model, typical: int) -> int:
    """Return how many rows to take at once.

    For a small model, as much of the typical number as fits into the L1 cache of a CPU, where it is read twice. For a
    model with much work per example, the number that computes the fewest rows in vain.
    """
    if jax.default_backend() != "cpu":
        return typical
    if model.small:
        return min(typical, _floor(max(8, _CACHED // max(samples.width, 1))))
    if len(samples) and _operations(model, samples.x.shape[1:], samples.x.dtype, samples.y.dtype) >= _MANY:
        return min(_least_work(np.diff(samples.offsets)), len(samples))
    return typical


def _least_work(sizes: NDArray[np.int64]) -> int:
    """Return the number of rows at once for which the devices' blocks take the least time.

    >>> [_least_work(np.array(sizes)) for sizes in ([50, 100, 100], [10, 10, 10], [128])]
    [50, 10, 43]
    """
    rows, devices = np.unique(sizes[sizes > 0], return_counts=True)
    candidates = np.arange(1, _MOST_ROWS + 1)
    blocks = (-(-rows[:, None] // candidates) * devices[:, None]).sum(axis=0)
    return int(candidates[np.argmin(blocks * (candidates + _PER_BLOCK))])


@lru_cache(maxsize=64)
def _operations(model: Model, shape: tuple[int, ...], x: np.dtype[Any], y: np.dtype[Any]) -> int:
    """Return the operations that the loss of one example takes."""
    params = parameter_shapes(model)
    example = jax.ShapeDtypeStruct((1, *shape), x), jax.ShapeDtypeStruct((1,), y)
    return count_operations(model.loss, params, *example)


def _padded_length(number: int) -> int:
    """Return the next power of four from 64 to 65,536, beyond that the next power of two.

    >>> [_padded_length(number) for number in (1, 65, 65536, 65537, 200_000)]
    [64, 256, 65536, 131072, 262144]
    """
    bits = max(number - 1, 63).bit_length()
    return 1 << (bits + bits % 2 if bits < 16 else bits)


def _floor(number: int) -> int:
    """Return the largest power of two that is not greater."""
    return 1 << (number.bit_length() - 1)


_COPIED = 1 << 24  # bytes, at most, that are copied to pad them
_CACHED = 1 << 13  # numbers, 32 KB
_MANY = 4 << 20  # operations for an example; they take about a tenth of a millisecond
_MOST_ROWS = 50  # in a product of more rows, XLA's library takes a fifth longer for each
_PER_BLOCK = 2  # rows that take as long as what a block costs beside its rows
