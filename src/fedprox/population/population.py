"""The population: the data of N devices, ragged, in one flat layout.

The samples of all devices lie one after another in one array; `offsets` says where each device begins. Nothing is
padded, a device is a slice, and p_k = n_k / n (the masses of Equation 1) follows from the offsets of the training
samples alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.core.errors import DataError
from fedprox.core.randomness import Purpose, words
from fedprox.population.labels import encode, is_missing
from fedprox.population.table import read_table

__all__ = ["Population", "Samples", "checked_rows", "split"]

Array = NDArray[Any]

_LARGEST = 2**20 - 1  # of a label; one beyond it is a mistake, since a model has parameters for each below
_EXACT = 2**24  # up to which single precision holds every integer


class RowCheck(Protocol):
    """Checks rows of a stored column."""

    def check(self, begin: int, end: int) -> None:
        """Raise `DataError` where rows `begin` to `end` are not what was written."""


@dataclass(frozen=True)
class Samples:
    """Samples of all devices: rows offsets[k] to offsets[k + 1] of `x` and `y` belong to device k."""

    x: Array  # (rows, ...)
    y: Array  # (rows,)
    offsets: NDArray[np.int64]  # (devices + 1,)

    def __post_init__(self) -> None:
        rows = int(self.offsets[-1])
        if len(self.x) != rows or len(self.y) != rows:
            raise DataError(f"x and y must have {rows} rows, as the offsets say; got {len(self.x)} and {len(self.y)}")

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __repr__(self) -> str:
        return f"Samples(devices={len(self.offsets) - 1}, rows={len(self)}, shape={tuple(self.x.shape[1:])})"

    @property
    def width(self) -> int:
        """How many numbers an example has."""
        return math.prod(self.x.shape[1:])

    def size(self, device: int) -> int:
        """Return n_k, the number of samples of a device."""
        return int(self.offsets[device + 1] - self.offsets[device])

    def of(self, device: int) -> tuple[Array, Array]:
        """Return the samples (x, y) of a device, without a copy."""
        rows = slice(int(self.offsets[device]), int(self.offsets[device + 1]))
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class Population:
    """The training and test samples of N devices.

    Attributes:
      train: training samples; every device has at least one.
      test: test samples; a device may have none.
      classes: the number of labels, or 0 where y is not a label.
      names: the devices' names, or None where they are just numbers.
      extras: named arrays that belong to the data as a whole, shared by all devices. A model over word ids finds the
        fixed word vectors (words, dimensions) here as `vectors`.
      folder: where it is on disk, if that is where it was opened.
      parts: by column, what checks rows of a stored population before they are used.
      labels: what each class is called in the data, or None where classes are called by their numbers.
      validation: samples of the same devices that are not trained on (`fedprox.population.set_aside`).
      holdout: the samples of other devices, which take no part in training.
    """

    train: Samples
    test: Samples
    classes: int
    names: Sequence[str] | None = None
    extras: Mapping[str, Array] = field(default_factory=dict)
    folder: str = ""
    parts: Mapping[str, RowCheck] = field(default_factory=dict, repr=False, compare=False)
    labels: tuple[Any, ...] | None = None
    validation: Samples | None = None
    holdout: Samples | None = None

    def __post_init__(self) -> None:
        sizes = np.diff(self.train.offsets)
        if len(sizes) == 0:
            raise DataError("a population must have at least one device; got none")
        if sizes.min() < 1:
            raise DataError(
                f"device {self.name(int(sizes.argmin()))} must have training samples; got none: leave its rows out, or "
                f"make some of them training rows"
            )
        if len(self.test.offsets) != len(self.train.offsets):
            raise DataError(f"training data has {len(sizes)} devices, test data {len(self.test.offsets) - 1}")

    def __repr__(self) -> str:
        """Return sizes, not samples.

        >>> Population.from_arrays(x=[[1.0], [2.0], [3.0]], y=["cat", "dog", "cat"], device=[0, 1, 0])
        Population(devices=2, train=3, test=0, shape=(1,), classes=2)
        """
        sizes = f"devices={self.devices}, train={len(self.train)}, test={len(self.test)}"
        return f"Population({sizes}, shape={self.shape}, classes={self.classes})"

    @property
    def devices(self) -> int:
        """N, the number of devices."""
        return len(self.train.offsets) - 1

    def check(self, devices: NDArray[np.int64] | None = None, *, test: bool = False) -> None:
        """Check the stored samples of these devices, or of all, against their digests; each part is read once."""
        for name, column in self.parts.items():
            if name.startswith("test") and not test:
                continue
            offsets = (self.test if name.startswith("test") else self.train).offsets
            if devices is None:
                column.check(0, int(offsets[-1]))
                continue
            for device in devices.tolist():
                column.check(int(offsets[device]), int(offsets[device + 1]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.x.shape[1:])

    @cached_property
    def masses(self) -> NDArray[np.float64]:
        """The p_k = n_k / n of all devices."""
        masses: NDArray[np.float64] = np.diff(self.train.offsets) / len(self.train)
        return masses

    def name(self, device: int) -> str:
        """Return the name of a device."""
        return str(device) if self.names is None else self.names[device]

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        device: ArrayLike | None = None,
        *,
        test: ArrayLike | None = None,
        seed: int = 0,
        classes: int | None = None,
        labels: Sequence[Any] | None = None,
    ) -> Population:
        """Group labelled examples by device.

        Args:
          x: (rows, ...) examples.
          y: (rows,) labels of any kind, or real targets. Integers that begin at 0 are class numbers; other labels are
            numbered in sorted order over all rows, and `labels` of the population keeps what they were.
          device: (rows,) the device of each row: numbers or names, in any order; without it one device has all rows.
          test: (rows,) true for test rows; without it a fifth of each device's rows, drawn with `seed`.
          classes, labels: how many classes there are, or what they are called; with either, y are class numbers and
            nothing is numbered anew.

        >>> population = Population.from_arrays(x=[[1.0], [2.0], [3.0]], y=[0, 1, 0], device=["b", "a", "b"])
        >>> population.devices, population.name(0), population.train.size(1)
        (2, 'a', 2)
        """
        x = np.asarray(x)
        if classes is None and labels is None:
            y, labels = encode(y)
        else:
            y, classes = np.asarray(y), len(labels) if labels is not None else classes
        device = np.full(len(x) if x.ndim else 0, "all") if device is None else np.asarray(device)
        if x.ndim == 0 or y.ndim != 1 or device.ndim != 1:
            raise DataError(
                f"x must have a row, y a label or number and device a name for each example; got arrays of shapes "
                f"{x.shape}, {y.shape} and {device.shape}"
            )
        device = _named(device)
        if device.dtype.kind not in "iufbUS":
            raise DataError(f"device must be numbers or names; got {device.dtype}")
        if not len(x) == len(y) == len(device) or len(x) == 0:
            raise DataError(
                f"x, y and device must have the same number of rows, at least one; "
                f"got {len(x)}, {len(y)} and {len(device)}"
            )
        names, owner = np.unique(device, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        offsets = _offsets(np.bincount(owner, minlength=len(names)))
        if test is not None and np.shape(test) != (len(x),):
            raise DataError(
                f"test must have one entry for each of the {len(x)} rows, true for test rows; got an array of shape "
                f"{np.shape(test)}"
            )
        is_test = split(offsets, seed) if test is None else _flags(np.asarray(test))[order]
        return cls.from_split(
            x[order],
            y[order],
            offsets,
            is_test,
            names=[str(name) for name in names],
            classes=classes if labels is None else len(labels),
            labels=None if labels is None else tuple(labels),
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        x: str | Sequence[str] = (),
        y: str = "y",
        device: str | None = "device",
        *,
        test: str | None = None,
        seed: int = 0,
    ) -> Population:
        """Group the rows of a table with named columns by device, as `from_arrays` does.

        Args:
          frame: a DataFrame of pandas or Polars, an Arrow table, a Hugging Face data set or a dict of arrays.
          x: the columns of features, or one column whose rows are arrays; by default all that have no other role.
          y, device, test: the columns of labels or targets, of devices (None: one device), and of marks of test rows.

        >>> frame = {"age": [20.0, 30.0, 40.0], "kind": ["cat", "dog", "cat"], "owner": ["b", "a", "b"]}
        >>> population = Population.from_frame(frame, x=["age"], y="kind", device="owner")
        >>> population.labels, population.train.x.ravel().tolist()
        (('cat', 'dog'), [30.0, 20.0, 40.0])
        """
        table = read_table(frame, x, y, device, test)
        return cls.from_arrays(table.x, table.y, table.device, test=table.test, seed=seed, labels=table.labels)

    @classmethod
    def from_split(
        cls,
        x: Array,
        y: Array,
        offsets: NDArray[np.int64],
        is_test: NDArray[np.bool_],
        *,
        names: Sequence[str] | None = None,
        classes: int | None = None,
        extras: Mapping[str, Array] | None = None,
        labels: tuple[Any, ...] | None = None,
    ) -> Population:
        """Divide rows that lie device by device into training and test samples, and check them."""
        x, y = checked_rows(x, y, offsets, names if names is not None else range(len(offsets) - 1), classes)
        if classes is None:
            classes = int(y.max()) + 1 if np.issubdtype(y.dtype, np.integer) else 0

        def part(chosen: NDArray[np.bool_]) -> Samples:
            return Samples(x[chosen], y[chosen], _offsets(chosen)[offsets])

        return cls(part(~is_test), part(is_test), classes, names, extras or {}, labels=labels)


def _named(device: Array) -> Array:
    """Return the devices of all rows as they can be compared; refuse a row that has none."""
    missing = [is_missing(item) for item in device.tolist()] if device.dtype.kind in "fO" else []
    if any(missing):
        raise DataError(
            f"device must name a device in every row; row {missing.index(True)} has none: drop such rows or give "
            f"them a device"
        )
    return device.astype(str) if device.dtype.kind == "O" else device


def split(
    offsets: NDArray[np.int64], seed: int, share: float = 0.2, purpose: Purpose = Purpose.SPLIT
) -> NDArray[np.bool_]:
    """Mark floor(share * n_k) of each device's rows as test rows, drawn for (seed, device); never all of them."""
    is_test = np.zeros(int(offsets[-1]), bool)
    for device, (begin, end) in enumerate(pairwise(offsets.tolist())):
        size = end - begin
        order = np.argsort(words(size, seed, purpose, device=device), kind="stable")
        is_test[begin + order[: min(int(share * size), size - 1)]] = True
    return is_test


def _offsets(sizes: Array) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


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
        raise DataError(f"x must be real numbers; got {x.dtype}")
    if 0 in x.shape[1:]:
        raise DataError(f"x must have at least one number in an example; got examples of shape {x.shape[1:]}")
    if x.dtype.kind in "iu":
        if (row := _first_inexact(x)) is not None:
            raise DataError(
                f"x must be integers that single precision holds exactly (all up to 2^24), below 2^31; "
                f"{where(row)} has another"
            )
    else:
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused
            x = x.astype(np.float32, copy=False)
        finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
        if not finite.all():
            raise DataError(f"x must be finite numbers; {where(int(finite.argmin()))} is not")
    if y.dtype.kind in "iub":
        if len(y) and y.min() < 0:
            raise DataError(f"labels must be integers >= 0; {where(int(y.argmin()))} has {y.min()}")
        if len(y) and y.max() > _LARGEST:
            raise DataError(f"labels must be at most {_LARGEST}; {where(int(y.argmax()))} has {y.max()}")
        if classes and len(y) and y.max() >= classes:
            raise DataError(
                f"labels must be below {classes}, the number of classes; {where(int(y.argmax()))} has {y.max()}"
            )
        return x, y.astype(np.int32, copy=False)
    if y.dtype.kind != "f":
        raise DataError(f"y must be real numbers; got {y.dtype}")
    with np.errstate(over="ignore"):
        y = y.astype(np.float32, copy=False)
    if not np.isfinite(y).all():
        raise DataError(f"y must be finite numbers; {where(int(np.isfinite(y).argmin()))} is not")
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


def _flags(values: Array) -> NDArray[np.bool_]:
    """Return a mask; anything but true, false, 0 and 1 is refused, since a text such as "False" would be true."""
    if values.dtype == bool:
        return values
    if values.dtype.kind not in "iuf" or not np.isin(values, (0, 1)).all():
        raise DataError(f"test must be true or false (or 1 or 0) for each row; got {values.dtype} with other values")
    return values.astype(bool)
