"""A population from any Python iterator of (device, x, y), one example at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedprox.core.errors import DataError
from fedprox.data.dataset import described
from fedprox.population import Population
from fedprox.population.labels import is_missing

__all__ = ["read_iterator"]


def read_iterator(examples: Iterable[tuple[Any, Any, Any]], seed: int = 0) -> Population:
    """Collect examples by device; a fifth of each device's are test examples, drawn with `seed`.

    For more than fits into memory, write devices with `fedprox.population.writer.PopulationWriter`.

    >>> population = read_iterator([("a", [1.0], 0), ("b", [2.0], 1), ("a", [3.0], 1)])
    >>> population.devices, population.train.of(0)[0].tolist()
    (2, [[1.0], [3.0]])
    """
    if not isinstance(examples, Iterable):
        raise DataError(f"examples must be triples (device, x, y) to iterate over; got {described(examples)}")
    devices, xs, ys = [], [], []
    shape: tuple[int, ...] | None = None
    for row, example in enumerate(examples):
        if not isinstance(example, (tuple, list)) or len(example) != 3:
            raise DataError(f"an example must be a triple (device, x, y); example {row} is {described(example)}")
        device, x, y = example
        if is_missing(device):
            raise DataError(f"device must name a device in every example; example {row} has none")
        values = np.asarray(x)
        if shape is None:
            shape = values.shape
        if values.shape != shape:
            raise DataError(
                f"x must have the shape {shape} of the first example; device {device}, row {row} has {values.shape}"
            )
        devices.append(str(device))
        xs.append(values)
        ys.append(y)
    if not xs:
        raise DataError("a population must have at least one example; the iterator gave none")
    return Population.from_arrays(np.stack(xs), np.asarray(ys), np.asarray(devices), seed=seed)
