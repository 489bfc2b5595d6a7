"""The samples of a population divided among new devices (`data.partition`).

All training samples are pooled and dealt to N new devices by a partitioner; test samples stay test samples, validation
samples too, and held-out devices stay as they are. Test samples of a label are dealt in proportion to the training
samples of that label, so that a device is tested on labels that it trains on, and no test sample is lost.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import ConfigError, DataError
from fedprox.core.randomness import Purpose, generator
from fedprox.population.partition import by_classes, by_dirichlet, by_sizes, iid, power_law_sizes
from fedprox.population.population import Population
from fedprox.population.samples import Samples

__all__ = ["PARTITIONS", "repartition"]

Devices = NDArray[np.int64]

PARTITIONS = ("iid", "dirichlet", "classes", "power_law")


def repartition(
    population: Population,
    partition: str,
    devices: int,
    *,
    concentration: float = 0.5,
    classes_per_device: int = 2,
    seed: int = 0,
) -> Population:
    """Return the samples of a population on `devices` new devices.

    Args:
      partition: `iid` (equal shares at random), `dirichlet` (each label in Dirichlet(`concentration`) shares),
        `classes` (`classes_per_device` labels on each device) or `power_law` (at random, sizes by a power law).

    >>> pooled = Population.from_arrays(np.zeros((100, 1)), np.arange(100) % 2, np.zeros(100))
    >>> one_label_each = repartition(pooled, "classes", 4, classes_per_device=1)
    >>> [set(one_label_each.train.of(k)[1].tolist()) for k in range(4)]
    [{0}, {1}, {0}, {1}]
    """
    population.check(test=True)
    y = population.train.y
    _check(population, partition, devices, concentration, classes_per_device)
    if partition == "iid":
        owner = iid(len(y), devices, seed)
    elif partition == "power_law":
        owner = by_sizes(len(y), power_law_sizes(devices, seed=seed), seed)
    elif partition == "dirichlet":
        owner = by_dirichlet(y, devices, concentration, seed)
    else:
        owner = _by_classes(population, devices, classes_per_device, seed)

    def deal(samples: Samples, draw: int) -> Samples:
        return _dealt(samples, _deal_alike(samples.y, y, owner, devices, seed, draw), devices)

    return Population(
        _dealt(population.train, owner, devices),
        deal(population.test, 2),
        population.classes,
        extras=population.extras,
        labels=population.labels,
        validation=None if population.validation is None else deal(population.validation, 3),
        holdout=population.holdout,
    )


def _check(population: Population, partition: str, devices: int, concentration: float, classes: int) -> None:
    rows = len(population.train)
    for key, value, kind, words in (
        ("devices", devices, numbers.Integral, "an integer"),
        ("concentration", concentration, numbers.Real, "a number"),
        ("classes_per_device", classes, numbers.Integral, "an integer"),
    ):
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ConfigError(f"`data.{key}` must be {words}; got {value!r}")
    if partition not in PARTITIONS:
        raise ConfigError(f"`data.partition` must be one of {', '.join(PARTITIONS)}; got {partition!r}")
    if not 1 <= devices <= rows:
        raise ConfigError(
            f"`data.devices` must be from 1 to {rows}, the number of training samples, so that no device is empty; "
            f"got {devices}"
        )
    if partition in ("iid", "power_law"):
        return
    if population.classes == 0:
        raise DataError(f"`data.partition` = {partition!r} must be used with labels; the y of this data are not labels")
    if partition == "dirichlet" and not 0 < concentration < math.inf:
        raise ConfigError(f"`data.concentration` must be a finite number > 0; got {concentration}")
    labels = len(np.unique(population.train.y))
    if partition == "classes" and not 1 <= classes <= labels:
        raise ConfigError(
            f"`data.classes_per_device` must be from 1 to {labels}, the number of labels in the data; got {classes}"
        )
    if partition == "classes" and devices * classes < labels:
        raise ConfigError(
            f"`data.devices` times `data.classes_per_device` must be at least {labels}, the number of labels in "
            f"the data; got {devices} times {classes}"
        )


def _by_classes(population: Population, devices: int, classes: int, seed: int) -> Devices:
    y = population.train.y
    try:
        return by_classes(y, devices, classes, seed=seed)
    except DataError as error:
        raise DataError(
            f"`data.devices` = {devices} and `data.classes_per_device` = {classes} must leave each device a row of "
            f"each of its labels: {error}"
        ) from None


def _deal_alike(test_y: NDArray[Any], y: NDArray[Any], owner: Devices, devices: int, seed: int, draw: int) -> Devices:
    """Return the device of each test sample: by label in proportion to the training samples, at random within it."""
    random = generator(seed, Purpose.PARTITION, round=draw)
    everywhere = np.bincount(owner, minlength=devices)
    is_label = np.issubdtype(y.dtype, np.integer)
    groups = test_y if is_label else np.zeros(len(test_y), int)
    dealt = np.empty(len(test_y), np.int64)
    for label in np.unique(groups):
        rows = random.permutation(np.flatnonzero(groups == label))
        share = np.bincount(owner[y == label], minlength=devices) if is_label else everywhere
        share = share if share.any() else everywhere  # a label that training does not have
        ends = np.rint(np.cumsum(share) / share.sum() * len(rows))
        dealt[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return dealt


def _dealt(samples: Samples, owner: Devices, devices: int) -> Samples:
    order = np.argsort(owner, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=devices))]).astype(np.int64)
    return Samples(samples.x[order], samples.y[order], offsets)
