"""Partitioners: which device gets which of some labelled examples.

Each returns `device`, the number of the device of every row, for `Population.from_arrays(x, y, device)`:

    >>> from fedprox.population import Population
    >>> y = np.arange(1000) % 10
    >>> population = Population.from_arrays(np.zeros((1000, 2)), y, by_dirichlet(y, devices=20, alpha=0.3))
    >>> population.devices
    20

A draw depends on the seed alone. Every device gets at least one row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.core.errors import ConfigError, DataError
from fedprox.core.randomness import Purpose, generator

__all__ = ["by_classes", "by_dirichlet", "by_key", "by_sizes", "iid", "lognormal_sizes", "power_law_sizes"]

Devices = NDArray[np.int64]


def iid(rows: int, devices: int, seed: int = 0) -> Devices:
    """Deal rows out in random order, as equally as integers allow.

    >>> np.bincount(iid(10, 3)).tolist()
    [4, 3, 3]
    """
    _enough(rows, devices)
    return by_sizes(rows, np.bincount(np.arange(rows) % devices, minlength=devices), seed)


def by_key(key: ArrayLike) -> Devices:
    """Make one device of all rows with the same key, in the order of the keys.

    >>> by_key(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    return np.unique(np.asarray(key), return_inverse=True)[1].astype(np.int64)


def by_sizes(rows: int, sizes: ArrayLike, seed: int = 0) -> Devices:
    """Give each device as many random rows as `sizes` says, scaled so that all rows are used once.

    >>> np.bincount(by_sizes(100, [1, 3])).tolist()
    [25, 75]
    """
    counts = _scaled(np.asarray(sizes, float), rows)
    device = np.repeat(np.arange(len(counts)), counts)
    return generator(seed, Purpose.PARTITION).permutation(device)


def power_law_sizes(devices: int, exponent: float = 2.0, seed: int = 0) -> NDArray[np.float64]:
    """Draw relative sizes with density proportional to s^-exponent for s >= 1."""
    if exponent <= 1:
        raise ConfigError(f"`exponent` must be a number > 1; got {exponent}")
    return (1 - generator(seed, Purpose.PARTITION, round=1).random(devices)) ** (-1 / (exponent - 1))


def lognormal_sizes(devices: int, mean: float = 4.0, deviation: float = 2.0, seed: int = 0) -> NDArray[np.float64]:
    """Draw relative sizes whose logarithms are normal, as the paper's are."""
    if deviation < 0:
        raise ConfigError(f"`deviation` must be a number >= 0; got {deviation}")
    return generator(seed, Purpose.PARTITION, round=1).lognormal(mean, deviation, devices)


def by_dirichlet(y: ArrayLike, devices: int, alpha: float, seed: int = 0) -> Devices:
    """Skew labels: divide the rows of each class over the devices in Dirichlet(alpha) shares.

    The smaller alpha, the fewer devices hold most of a class; as alpha grows, all devices become alike. A device that
    the draw leaves without rows gets one from the largest device.
    """
    if not 0 < alpha < math.inf:
        raise ConfigError(f"`alpha` must be a finite number > 0; got {alpha}")
    labels = _labels(y)
    _enough(len(labels), devices)
    random = generator(seed, Purpose.PARTITION)
    device = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(devices, alpha))
        ends = np.rint(np.cumsum(shares) * len(rows)).astype(int)
        device[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right").clip(max=devices - 1)
    return _none_empty(device, devices)


def by_classes(y: ArrayLike, devices: int, classes: int, sizes: ArrayLike | None = None, seed: int = 0) -> Devices:
    """Give each device rows of `classes` labels only: neighbours on the circle of all labels.

    Args:
      sizes: relative sizes of the devices; equal without it. A class is divided in proportion to them over the
        devices that hold it, so that all rows are used once.
    """
    labels = _labels(y)
    present = np.unique(labels)
    if not 1 <= classes <= len(present):
        raise ConfigError(f"`classes` must be an integer from 1 to {len(present)}, the number of labels; got {classes}")
    if devices * classes < len(present):
        raise ConfigError(
            f"`devices` times `classes` must be at least {len(present)}, the number of labels; got {devices * classes}"
        )
    weight = np.ones(devices) if sizes is None else np.asarray(sizes, float)
    if len(weight) != devices or not (weight > 0).all():
        raise ConfigError(f"`sizes` must be {devices} numbers > 0, one for each device; got {len(weight)}")
    count = len(present)
    first = np.arange(devices) % count if devices >= count else np.arange(devices) * count // devices
    holds = (np.arange(count) - first[:, None]) % count < classes  # (devices, labels)
    random = generator(seed, Purpose.PARTITION)
    device = np.empty(len(labels), np.int64)
    for position, label in enumerate(present):
        rows = random.permutation(np.flatnonzero(labels == label))
        owners = np.flatnonzero(holds[:, position])
        if len(rows) < len(owners):
            raise DataError(
                f"label {label} must have at least {len(owners)} rows, one per device with it; got {len(rows)}"
            )
        device[rows] = np.repeat(owners, _scaled(weight[owners], len(rows)))
    return device


def _scaled(sizes: NDArray[np.float64], rows: int) -> NDArray[np.int64]:
    """Return integers >= 1 in proportion to `sizes` that add up to `rows`."""
    if len(sizes) == 0 or not np.isfinite(sizes).all() or (sizes <= 0).any():
        raise ConfigError("`sizes` must be numbers > 0, at least one")
    _enough(rows, len(sizes))
    ends = np.rint(np.cumsum(sizes) / sizes.sum() * (rows - len(sizes))).astype(np.int64)
    return 1 + np.diff(ends, prepend=0)


def _none_empty(device: Devices, devices: int) -> Devices:
    counts = np.bincount(device, minlength=devices)
    for empty in np.flatnonzero(counts == 0):
        largest = int(counts.argmax())
        device[np.flatnonzero(device == largest)[0]] = empty
        counts[largest], counts[empty] = counts[largest] - 1, 1
    return device


def _labels(y: ArrayLike) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"y must be labels, integers in one row each; got {labels.dtype} of shape {labels.shape}")
    return labels


def _enough(rows: int, devices: int) -> None:
    if not 1 <= devices <= rows:
        raise ConfigError(f"`devices` must be an integer from 1 to {rows}, the number of rows; got {devices}")
