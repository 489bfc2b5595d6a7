"""Lists, tensors, DataFrames and the like as NumPy arrays; refused where that would lose something."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.reading import reason

__all__ = ["decoded", "numbers", "to_array"]


def to_array(given: Any, name: str) -> NDArray[Any]:
    """Return what was given as an array; `name` is the argument's, for the error.

    >>> to_array([[1, 2], [3]], "x")
    Traceback (most recent call last):
    ...
    fedprox.core.errors.DataError: x must have one shape in all rows; its rows differ
    """
    if np.ma.is_masked(given):
        raise DataError(f"{name} must have a value in every row; got a masked array: fill it in or drop such rows")
    try:
        array = np.asarray(given)
    except ValueError as error:
        if "inhomogeneous" in str(error):
            raise DataError(f"{name} must have one shape in all rows; its rows differ") from None
        raise DataError(f"{name} must be an array; got {type(given).__name__}: {reason(error)}") from None
    except (TypeError, RuntimeError) as error:  # a tensor that requires gradients or is on an accelerator
        raise DataError(f"{name} must be an array; got {type(given).__name__}: {reason(error)}") from None
    if array.ndim == 0 and array.dtype.kind in "OU":
        kind = type(given).__name__
        hint = ": `Population.from_frame` takes tables with named columns" if kind == "dict" else ""
        raise DataError(f"{name} must be an array with a row for each example; got {kind}{hint}")
    return array


def numbers(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of Python objects as numbers, where all of them are.

    >>> numbers(np.array([1, 2.5], object), "x").dtype
    dtype('float64')
    """
    if array.dtype.kind != "O":
        return array
    for index, value in np.ndenumerate(array):
        if not isinstance(value, (bool, int, float, np.number, np.bool_)):
            kind = "text" if isinstance(value, str) else type(value).__name__
            raise DataError(f"{name} must be real numbers; row {index[0]} has {kind}, {value!r}")
    return array.astype(np.float64)


def decoded(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return bytes as text."""
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{name} must be text in UTF-8 where it has bytes; got other bytes: decode them") from None
