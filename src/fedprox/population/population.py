"""The population: the training and test samples of N devices, and how to make it from arrays and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.core.errors import DataError
from fedprox.population.given_arrays import decoded, numbers, to_array
from fedprox.population.labels import encode, is_missing, one_hot_columns, one_per_row
from fedprox.population.row_checks import checked_rows
from fedprox.population.samples import Samples
from fedprox.population.splitting import split
from fedprox.population.table import read_table

__all__ = ["Population"]

Array = NDArray[Any]

_MOST_CLASSES = 2**20


class RowCheck(Protocol):
    """Checks rows of a stored column."""

    def check(self, begin: int, end: int) -> None:
        """Raise `DataError` where rows `begin` to `end` are not what was written."""


@dataclass(frozen=True)
class Population:
    """The training and test samples of N devices.

    Attributes:
      train: training samples; every device has at least one.
      test: test samples; a device may have none.
      classes: the number of labels, or 0 where y is not a label.
      names: the devices' names, or None if they are plain numbers.
      extras: named arrays that belong to the data as a whole, shared by all devices. A model over word ids finds the
        fixed word vectors (words, dimensions) here as `vectors`.
      folder: its folder, if it was opened from disk.
      parts: by column, the check of a stored population's rows before they are used.
      labels: the name of each class in the data, or None where the classes are plain numbers.
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
          y: (rows,) labels of any kind, or real targets. Integers that begin at 0 are class numbers, and so are the
            columns of one-hot rows; other labels are numbered in sorted order over all rows, and the population keeps
            the original ones as `labels`.
          device: (rows,) the device of each row: numbers or names, in any order; without it one device has all rows.
          test: (rows,) true for test rows; without it a fifth of each device's rows, drawn with `seed`.
          classes, labels: how many classes there are, or what they are called; with either, y are class numbers and
            labels are not renumbered.

        >>> population = Population.from_arrays(x=[[1.0], [2.0], [3.0]], y=[0, 1, 0], device=["b", "a", "b"])
        >>> population.devices, population.name(0), population.train.size(1)
        (2, 'a', 2)
        """
        x = numbers(to_array(x, "x"), "x")
        if columns := one_hot_columns(y):
            y, classes = one_per_row(y), columns if classes is None and labels is None else classes
        if classes is None and labels is None:
            y, labels = encode(y)
        else:
            labels = None if labels is None else tuple(labels)
            y, classes = _class_numbers(y, classes, labels)
        device = np.full(len(x) if x.ndim else 0, "all") if device is None else to_array(device, "device")
        if x.ndim == 0 or y.ndim != 1 or device.ndim != 1:
            raise DataError(
                f"x must have a row, y a label or number and device a name for each example; got arrays of shapes "
                f"{x.shape}, {y.shape} and {device.shape}"
            )
        device = _named(device)
        if device.dtype.kind not in "iufbUS":
            raise DataError(f"device must be numbers or names; got {device.dtype}: convert them to text")
        if not len(x) == len(y) == len(device) or len(x) == 0:
            raise DataError(
                f"x, y and device must have the same number of rows, at least one; "
                f"got {len(x)}, {len(y)} and {len(device)}"
            )
        names, owner = np.unique(device, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        offsets = _offsets(np.bincount(owner, minlength=len(names)))
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
            raise DataError(f"seed must be an integer >= 0, below 2^63; got {seed!r}")
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
            labels=labels,
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
          y: the column of labels or targets.
          device: the column with the device of each row; None: one device.
          test: the column that marks test rows; None: a fifth of each device's rows.

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
        """Divide rows, which are ordered by device, into training and test samples, and check them."""
        x, y = checked_rows(x, y, offsets, names if names is not None else range(len(offsets) - 1), classes)
        if classes is None:
            classes = int(y.max()) + 1 if np.issubdtype(y.dtype, np.integer) else 0

        def part(chosen: NDArray[np.bool_]) -> Samples:
            return Samples(x[chosen], y[chosen], _offsets(chosen)[offsets])

        return cls(part(~is_test), part(is_test), classes, names, extras or {}, labels=labels)


def _named(device: Array) -> Array:
    """Return the devices of all rows in comparable form; refuse a row that has none."""
    missing = [is_missing(item) for item in device.tolist()] if device.dtype.kind in "fO" else []
    if any(missing):
        raise DataError(
            f"device must name a device in every row; row {missing.index(True)} has none: drop such rows or give "
            f"them a device"
        )
    if device.dtype.kind == "S":
        return decoded(device, "device")
    if device.dtype.kind != "O":
        return device
    kinds = {isinstance(item, str) for item in device.tolist()}
    names = device.astype(str)
    if len(kinds) > 1 and len(np.unique(names)) < len(set(device.tolist())):
        raise DataError(
            "device must be of one type, since '1' and 1 differ; got text and numbers: convert them to text"
        )
    return names


def _class_numbers(y: Any, classes: Any, labels: tuple[Any, ...] | None) -> tuple[Array, int]:
    """Return y and the number of classes, where y is given as class numbers."""
    y = to_array(y, "y")
    if labels is not None:
        if classes not in (None, len(labels)):
            raise DataError(f"classes must be {len(labels)}, the number of labels given; got {classes!r}")
        if not labels or len(set(labels)) != len(labels):
            raise DataError(f"labels must name each class once; got {list(labels)!r}")
        classes = len(labels)
    if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or not 1 <= classes <= _MOST_CLASSES:
        raise DataError(f"classes must be an integer from 1 to {_MOST_CLASSES}; got {classes!r}")
    if y.dtype.kind not in "iu":
        kind = "text" if y.dtype.kind in "USO" else y.dtype
        raise DataError(f"y must be class numbers, integers, where classes= or labels= is given; got {kind}")
    return y, int(classes)


def _offsets(sizes: Array) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _flags(values: Array) -> NDArray[np.bool_]:
    """Return a mask; anything but true, false, 0 and 1 is refused, since a text such as "False" would be true."""
    if values.dtype == bool:
        return values
    if values.dtype.kind not in "iuf" or not np.isin(values, (0, 1)).all():
        raise DataError(
            f"test must be true or false (or 1 or 0) for each row; got other values, such as {values[:1].tolist()}"
        )
    return values.astype(bool)
