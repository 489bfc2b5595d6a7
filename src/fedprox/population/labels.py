"""Labels of any kind as the numbers 0, 1, 2, ... that a classifier needs, and back.

A map is a tuple: entry c is the name of class c in the data. It is made once, over the entire data set, in sorted
order, and stays with it: in the population, in the run folder and in the saved model. Integers that begin at 0 are
class numbers already, gaps included, and need no map.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.core.errors import DataError
from fedprox.population.given_arrays import decoded, to_array

__all__ = ["Labels", "decode", "encode", "is_missing", "one_hot_columns", "one_per_row"]

Labels = tuple[Any, ...] | None
"""The name of each class, as text, integers or booleans; None where the classes are plain numbers."""


def encode(y: ArrayLike) -> tuple[NDArray[Any], Labels]:
    """Return y as class numbers or real targets, one per row, and the map of its labels.

    Rows of one column are taken as numbers, one-hot rows as the place of the one. Real numbers are targets.

    >>> encode(["cat", "dog", "cat"])
    (array([0, 1, 0]), ('cat', 'dog'))
    >>> encode([2, 1])[1], encode([0, 5])[1], encode([[0, 1], [1, 0]])[0]
    ((1, 2), None, array([1, 0]))
    """
    values = one_per_row(y)
    if values.dtype.kind in "fc" or values.dtype == bool or values.ndim > 1:
        return values, None
    if values.dtype.kind in "iu" and (not len(values) or values.min() == 0):
        return values, None
    known, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), tuple(known.tolist())


def decode(codes: NDArray[Any], labels: Labels) -> NDArray[Any]:
    """Return the names of classes.

    >>> decode(np.array([1, 0]), ("cat", "dog")).tolist()
    ['dog', 'cat']
    """
    return codes if labels is None else np.asarray(labels)[codes]


def is_missing(item: Any) -> bool:
    """Return whether an entry is missing: None, NaN, or the equivalent of pandas."""
    return (
        item is None or (isinstance(item, float) and math.isnan(item)) or type(item).__name__ in ("NAType", "NaTType")
    )


def one_per_row(y: ArrayLike) -> NDArray[Any]:
    """Return y with one entry per row: rows of one column as their entry, one-hot rows as the place of the one."""
    values = _plain(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2 and values.dtype.kind in "iufb" and _is_one_hot(values):
        return values.argmax(axis=1)
    if values.ndim != 1 and values.dtype.kind not in "iuf":
        raise DataError(f"y must have one label per row; got shape {values.shape}")
    return values


def one_hot_columns(y: ArrayLike) -> int:
    """Return the number of classes that one-hot rows state, which may be more than occur; 0 for other labels.

    >>> one_hot_columns([[0, 1, 0], [1, 0, 0]]), one_hot_columns([0, 1])
    (3, 0)
    """
    values = to_array(y, "y")
    is_matrix = values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind in "iufb"
    return values.shape[1] if is_matrix and _is_one_hot(values) else 0


def _is_one_hot(values: NDArray[Any]) -> bool:
    ones = values == 1
    return bool((ones | (values == 0)).all() and (ones.sum(axis=1) == 1).all())


def _plain(y: ArrayLike) -> NDArray[Any]:
    """Return y as numbers, booleans or text; refuse rows without a label and mixed kinds."""
    values = np.atleast_1d(to_array(y, "y"))
    if values.dtype.kind == "f" and np.isnan(values).any():
        _refuse_missing(int(np.isnan(values.reshape(len(values), -1)).any(axis=1).argmax()))
    if values.dtype.kind in "biufUc":
        return values
    if values.dtype.kind == "S":
        return decoded(values, "y")
    if values.dtype.kind in "mM":
        return values.astype(str)
    items = values.tolist()
    for row, item in enumerate(items):
        if is_missing(item):
            _refuse_missing(row)
    kinds = {bool if isinstance(item, bool) else int if isinstance(item, int) else type(item) for item in items}
    if kinds <= {int, float, bool}:
        return np.asarray(items)
    if str in kinds and len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"labels must be of one type, since '1' and 1 differ; y has {names}: convert them, e.g. to str")
    return np.asarray([str(item) for item in items])


def _refuse_missing(row: int) -> None:
    raise DataError(f"y must have a label in every row; row {row} has none: drop such rows or fill them in")
