"""What the rows of all devices must be: finite features, and labels or real targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError

__all__ = ["checked_rows"]

Array = NDArray[Any]

_LARGEST = 2**20 - 1  # of a label; one beyond it is a mistake, since a model has parameters for each below
_EXACT = 2**24  # up to which single precision holds every integer


def checked_rows(
    x: Array, y: Array, offsets: NDArray[np.int64], names: Sequence[Any], classes: int | None = None
) -> tuple[Array, Array]:
    """Return x as float32 or integers, and y as int32 labels or float32 targets.

    Refuses what is not finite and labels that are negative or, where `classes` is given, too large; the message names
    the device and its row.
    """

    def where(row: int) -> str:
        device = int(np.searchsorted(offsets, row, "right")) - 1
        return f"device {names[device]}, row {row - int(offsets[device])}"

    if x.dtype.kind not in "iufb":  # complex numbers and durations are numbers for NumPy too
        kind = "text" if x.dtype.kind in "US" else x.dtype
        raise DataError(f"x must be real numbers; got {kind}")
    if 0 in x.shape[1:]:
        raise DataError(f"x must have at least one number in an example; got examples of shape {x.shape[1:]}")
    if x.dtype.kind in "iu":
        if (row := _first_inexact(x)) is not None:
            raise DataError(
                f"x must be integers that single precision holds exactly (all up to 2^24), below 2^31; "
                f"{where(row)} has another value"
            )
    else:
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused
            x = x.astype(np.float32, copy=False)
        finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
        if not finite.all():
            raise DataError(f"x must be finite numbers in single precision; {where(int(finite.argmin()))} is not")
    if y.dtype.kind in "iub":
        if len(y) and y.min() < 0:
            raise DataError(f"labels must be integers >= 0; {where(int(y.argmin()))} has {y.min()}")
        if len(y) and y.max() > _LARGEST:
            raise DataError(
                f"integer labels >= 0 are class numbers and must be at most {_LARGEST}; {where(int(y.argmax()))} has "
                f"{y.max()}: give them as text, which is numbered"
            )
        if classes and len(y) and y.max() >= classes:
            raise DataError(
                f"labels must be below {classes}, the number of classes; {where(int(y.argmax()))} has {y.max()}"
            )
        return x, y.astype(np.int32, copy=False)
    if y.dtype.kind != "f":
        kind = "text" if y.dtype.kind in "US" else y.dtype
        raise DataError(f"y must be real numbers; got {kind}")
    with np.errstate(over="ignore"):
        y = y.astype(np.float32, copy=False)
    if not np.isfinite(y).all():
        raise DataError(f"y must be finite numbers in single precision; {where(int(np.isfinite(y).argmin()))} is not")
    return x, y


def _first_inexact(x: Array) -> int | None:
    """Return the first row with an integer that single precision, or 32 bits, cannot hold; None where all fit."""
    if x.size == 0 or x.dtype.itemsize <= 2 or max(abs(int(x.min())), abs(int(x.max()))) <= _EXACT:
        return None
    fits = (x < 2**31) & (x.astype(np.float32) == x.astype(np.float64))  # below 2^53 a double is exact
    if x.dtype.kind == "i":
        fits &= x > -(2**31)
    rows = fits.reshape(len(x), -1).all(axis=1)
    return None if rows.all() else int(rows.argmin())
