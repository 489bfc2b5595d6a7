"""Data sets of PyTorch and of Hugging Face as populations; neither library is imported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.core.errors import DataError
from fedprox.population import Population
from fedprox.population.table import read_table

__all__ = ["described", "read_dataset"]


def read_dataset(
    dataset: Any,
    device: str | ArrayLike | None = None,
    *,
    x: str = "x",
    y: str = "y",
    test: str | ArrayLike | None = None,
    seed: int = 0,
) -> Population:
    """Read a data set whose items are pairs (x, y), as in PyTorch, or one with named columns, as in Hugging Face.

    Args:
      device: the device of each row, as an array or, with named columns, a column's name; None puts all on one device,
        which `fedprox.data.repartition` divides.
      x, y: the names of the columns, if columns are named.
      test: true for test rows; without it a fifth of each device's rows.

    >>> pairs = [([1.0, 2.0], "cat"), ([3.0, 4.0], "dog"), ([5.0, 6.0], "cat")]
    >>> population = read_dataset(pairs, device=["b", "a", "b"])
    >>> population.devices, population.labels
    (2, ('cat', 'dog'))
    """
    if hasattr(dataset, "column_names"):
        columns = [name if isinstance(name, str) else None for name in (device, test)]
        table = read_table(dataset, x, y, *columns)
        whose, marks = (table.device if columns[0] else device), (table.test if columns[1] else test)
        return Population.from_arrays(table.x, table.y, whose, test=marks, seed=seed, labels=table.labels)
    if not hasattr(dataset, "__len__"):
        raise DataError(
            f"a data set must have a length, so that it can be divided; got {type(dataset).__name__}: collect its "
            f"items in a list, or use `fedprox.data.read_iterator`"
        )
    if not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"a data set must give its items by number, as dataset[0]; got {type(dataset).__name__}"
            + (": use its `dataset`" if hasattr(dataset, "dataset") else "")
        )
    xs: list[NDArray[Any]] = []
    ys: list[Any] = []
    for row in range(len(dataset)):
        item = dataset[row]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise DataError(f"an item must be a pair (x, y); item {row} is {described(item)}")
        values = np.asarray(item[0])
        if xs and values.shape != xs[0].shape:
            raise DataError(f"x must have the shape {xs[0].shape} of the first item; item {row} has {values.shape}")
        xs.append(values)
        ys.append(item[1].item() if hasattr(item[1], "item") and np.ndim(item[1]) == 0 else item[1])
    if not xs:
        raise DataError("a data set must have at least one item; got none")
    for name, given in (("device", device), ("test", test)):
        if isinstance(given, str):
            raise DataError(f"{name} must be an array with one entry per item for pairs (x, y); got {given!r}")
    return Population.from_arrays(np.stack(xs), _labels(ys), device, test=test, seed=seed)


def described(item: Any) -> str:
    """Return the kind of an item that is not what it should be, in words.

    >>> described((1, 2)), described(3.0)
    ('a tuple of 2', 'a float')
    """
    kind = type(item).__name__
    return f"a {kind} of {len(item)}" if isinstance(item, (tuple, list, dict)) else f"a {kind}"


def _labels(ys: list[Any]) -> Any:
    try:
        return np.asarray(ys)
    except ValueError:
        raise DataError("y must have one shape in all items") from None
