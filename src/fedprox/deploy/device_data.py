"""The data of one device: its own samples and its number in the population."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.core.errors import DataError
from fedprox.population import Population, Samples
from fedprox.population.labels import one_per_row

__all__ = ["DeviceData", "checked_data", "sizes_only", "together"]


@dataclass(frozen=True)
class DeviceData:
    """The samples of one device.

    Attributes:
      device: its number in the population, from 0 on; everything random on it is drawn for that number.
      population: the same samples as a population of one, to measure on.
    """

    device: int
    population: Population

    @classmethod
    def from_arrays(
        cls, device: int, x: ArrayLike, y: ArrayLike, *, test: ArrayLike | None = None, seed: int = 0
    ) -> DeviceData:
        """Take the examples of a device.

        Args:
          x, y: (rows, ...) examples and (rows,) labels from 0 on, or real targets.
          test: (rows,) true for test rows; without it a fifth of the rows, drawn with `seed`.

        >>> data = DeviceData.from_arrays(7, x=[[1.0], [2.0]], y=[0, 1])
        >>> data.device, data.samples.size(7)
        (7, 2)
        """
        labels = one_per_row(y)
        if labels.dtype.kind not in "biuf":  # of one device alone, so that their numbers would differ between devices
            raise DataError(
                f"y of a device must be class numbers from 0 on, the same on all devices, or real targets; device "
                f"{device} has {labels[0].item()!r}: number the labels"
            )
        classes = max(int(labels.max()) + 1, 1) if labels.dtype.kind in "iu" and len(labels) else None
        owner = np.zeros(len(labels), int)
        return cls(device, Population.from_arrays(x, labels, owner, test=test, seed=seed, classes=classes))

    @classmethod
    def of(cls, population: Population, device: int) -> DeviceData:
        """Return the data of one device of a population."""
        if not 0 <= device < population.devices:
            raise DataError(f"a device's number must be from 0 to {population.devices - 1}; got {device}")
        alone = Population(
            _alone(population.train, device),
            _alone(population.test, device),
            population.classes,
            [population.name(device)],
            population.extras,
        )
        return cls(device, alone)

    @property
    def samples(self) -> Samples:
        """The training samples under the device's own number; the devices before it are empty here."""
        train = self.population.train
        offsets = np.zeros(self.device + 2, np.int64)
        offsets[-1] = len(train)
        return Samples(train.x, train.y, offsets)


def checked_data(data: Any) -> DeviceData:
    """Return what `load_data` of an app gives; refuse anything else."""
    if not isinstance(data, DeviceData):
        raise DataError(
            f"`load_data` must return a DeviceData; got {type(data).__name__}: use DeviceData.from_arrays(device, x, y)"
        )
    return data


def together(devices: Iterable[DeviceData]) -> Population:
    """Return the population of all these devices, numbered from 0 in their order, as a simulation needs it.

    >>> one, two = (DeviceData.from_arrays(k, x=[[1.0], [2.0]], y=[0, k], test=[False, True]) for k in (0, 1))
    >>> population = together([one, two])
    >>> population.devices, population.classes, len(population.train)
    (2, 2, 2)
    """
    populations = [checked_data(data).population for data in devices]
    if len(shapes := {population.shape for population in populations}) > 1:
        raise DataError(f"the examples of all devices must have one shape; got {', '.join(map(str, sorted(shapes)))}")
    return Population(
        _joined([population.train for population in populations]),
        _joined([population.test for population in populations]),
        max(population.classes for population in populations),
        extras=populations[0].extras,
    )


def sizes_only(train: list[int], test: list[int]) -> Population:
    """Return a population of which only the sizes are known, as the server knows it: one entry for each device.

    >>> population = sizes_only([3, 1], [1, 0])
    >>> population.devices, population.masses.tolist()
    (2, [0.75, 0.25])
    """
    return Population(_nothing_but_sizes(train), _nothing_but_sizes(test), classes=0)


def _alone(samples: Samples, device: int) -> Samples:
    x, y = samples.of(device)
    return Samples(x, y, np.array([0, len(y)]))


def _joined(samples: list[Samples]) -> Samples:
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in samples])]).astype(np.int64)
    return Samples(np.concatenate([each.x for each in samples]), np.concatenate([each.y for each in samples]), offsets)


def _nothing_but_sizes(sizes: list[int]) -> Samples:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows: NDArray[Any] = np.broadcast_to(np.float32(0), (int(offsets[-1]),))  # takes no memory
    return Samples(rows, rows, offsets)
