"""Tables with named columns: a DataFrame, an Arrow table, a Hugging Face data set or a dict of arrays.

A table is anything that returns a column by its name, `table["age"]`, and lists its names: as `columns` (pandas,
Polars), as `column_names` (Arrow, Hugging Face) or as its keys. None of these libraries is imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError, nearest, short
from fedprox.population.given_arrays import to_array
from fedprox.population.labels import is_missing

__all__ = ["HINTS", "Table", "feature_columns", "listed", "read_table"]

HINTS = {  # what an error adds to a missing column
    "y": " (y=, or `data.y_column` of a config, names the column of labels)",
    "device": ' (device=, or `data.device_column` of a config, names the column of devices; None or "": one device)',
}

Columns = str | Sequence[str]


class Table(NamedTuple):
    """The columns of a table by their roles, one entry per row."""

    x: NDArray[Any]
    y: NDArray[Any]
    device: NDArray[Any] | None
    test: NDArray[np.bool_] | None
    labels: tuple[str, ...] | None = None


def read_table(
    table: Any, x: Columns = (), y: str = "y", device: str | None = "device", test: str | None = None
) -> Table:
    """Return the columns of a table by their roles.

    Args:
      x: the columns of features, or one column whose rows are arrays or lists; by default all that have no other role.
      y: the column of labels (of any kind) or real targets.
      device: the column with the device of each row, or None.
      test: the column of booleans that marks test rows, or None.

    >>> table = {"age": [20.0, 30.0, 40.0], "kind": ["cat", "dog", "cat"], "owner": ["b", "a", "b"]}
    >>> read_table(table, x=["age"], y="kind", device="owner").device.tolist()
    ['b', 'a', 'b']
    """
    names = _names(table)
    roles = {"y": y, **({"device": device} if device else {}), **({"test": test} if test else {})}
    for role, name in roles.items():
        if name not in names:
            hint = nearest(name, names) or HINTS.get(role, "")
            raise DataError(f"there must be a column {name!r} for {role}; got {listed(names)}{hint}")
    if y in ([x] if isinstance(x, str) else list(x)):
        raise DataError(f"x must not have the labels among its columns; got {y!r} for both x and y")
    features = feature_columns(table, x, list(roles.values()))
    marks = None if test is None else _truth(_column(table, test), test)
    whose = _column(table, device) if device else None
    return Table(features, _column(table, y), whose, marks, _class_names(table, y))


def feature_columns(table: Any, x: Columns, others: Sequence[str]) -> NDArray[Any]:
    """Return the features of a table: the columns `x`, or all but `others` if none is named."""
    names = _names(table)
    if isinstance(x, str):
        return _stacked(table, x, names)
    chosen = list(x) or [name for name in names if name not in others]
    if repeated := [name for name in chosen if chosen.count(name) > 1]:
        raise DataError(f"x must name each column once; {repeated[0]!r} appears twice")
    if not chosen:
        raise DataError(f"there must be columns for x besides {', '.join(others)}; got {listed(names)}")
    if (
        len(chosen) == 1
        and chosen[0] in names
        and any(np.ndim(first) for first in itertools.islice(table[chosen[0]], 1))
    ):
        return _stacked(table, chosen[0], names)
    columns = [_numbers(table, name, names) for name in chosen]
    if len(lengths := {len(column) for column in columns}) > 1:
        raise DataError(f"the columns of x must have one length; got {', '.join(map(str, sorted(lengths)))} rows")
    return np.stack(columns, axis=1)


def _class_names(table: Any, y: str) -> tuple[str, ...] | None:
    """Return the class names that a Hugging Face data set stores with its column y."""
    features = getattr(table, "features", None)
    found = getattr(features.get(y), "names", None) if isinstance(features, Mapping) else None
    return tuple(found) if found else None


def _names(table: Any) -> list[str]:
    if hasattr(table, "collect_schema") and hasattr(table, "collect"):
        raise DataError(f"a table must have its rows in memory; got {type(table).__name__}: collect() it first")
    for attribute in ("column_names", "columns"):
        if (found := getattr(table, attribute, None)) is not None:
            if isinstance(found, Mapping):
                raise DataError(
                    f"a table must be one split of a data set, such as data[{next(iter(found))!r}]; got all of them"
                )
            if attribute == "column_names" and not hasattr(table, "__len__"):
                raise DataError(
                    f"a data set must have a length, so that it can be divided; got {type(table).__name__}: load it "
                    f"without streaming, or use `fedprox.data.read_iterator`"
                )
            return _checked(found)
    if isinstance(table, Mapping):
        return _checked(table)
    raise DataError(
        f"a table must have named columns: a DataFrame, an Arrow table, a Hugging Face data set or a dict of arrays; "
        f"got {type(table).__name__}"
        + (
            ": `fedprox.data.read_dataset` takes pairs (x, y)"
            if hasattr(table, "__getitem__") and not hasattr(table, "shape")
            else ""
        )
    )


def _checked(names: Iterable[Any]) -> list[str]:
    """Return the names of the columns; each must be text, and there once."""
    found = list(names)
    for name in found:
        if not isinstance(name, str):
            raise DataError(
                f"the columns of a table must have text as their names; got {name!r}: rename them, such as with "
                f"frame.columns = frame.columns.map(str)"
            )
        if found.count(name) > 1:
            raise DataError(f"the columns of a table must have different names; {name!r} appears twice")
    return found


def _column(table: Any, name: str) -> NDArray[Any]:
    column = table[name]
    convert = getattr(column, "to_numpy", None)
    return to_array(convert() if convert is not None else column, f"the column {name!r}")


def _numbers(table: Any, name: str, names: Sequence[str]) -> NDArray[Any]:
    if name not in names:
        raise DataError(f"there must be a column {name!r} for x; got {listed(names)}{nearest(name, names)}")
    column = _column(table, name)
    if column.ndim == 1 and column.dtype == object and any(map(is_missing, column)):
        column = np.array([np.nan if is_missing(value) else value for value in column])
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        kind, example = _first_other(column)
        raise DataError(
            f"x must be numbers; column {name!r} has {kind}, such as {example}: name the columns of x, or turn this "
            f"one into numbers"
        )
    missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), bool)
    if missing.any():
        raise DataError(
            f"x must have a number in every row; column {name!r}, row {int(missing.argmax())} has none: drop such rows "
            f"or fill them in"
        )
    return column


def _first_other(column: NDArray[Any]) -> tuple[str, str]:
    """Return the kind of a column that is not of numbers, and the first entry that is no number.

    >>> _first_other(np.array(["1", "2", "NA"]))
    ('text', "'NA' in row 2")
    """
    for row, value in enumerate(column.tolist() if column.ndim == 1 else []):
        try:
            float(value)
        except (TypeError, ValueError):
            kind = "text" if isinstance(value, str) else column.dtype.name if column.dtype != object else "objects"
            return kind, f"{short(value)} in row {row}"
    is_text = all(isinstance(value, str) for value in column.ravel()[:1].tolist())
    kind = "text" if is_text else "objects" if column.dtype == object else column.dtype.name
    return kind, short(column.ravel()[:1].tolist())


def _stacked(table: Any, name: str, names: Sequence[str]) -> NDArray[Any]:
    """Return the rows of a column of arrays, lists or images; a column of numbers is one feature."""
    if name not in names:
        raise DataError(f"there must be a column {name!r} for x; got {listed(names)}{nearest(name, names)}")
    rows = [np.asarray(row) for row in table[name]]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise DataError(f"x must have one shape in all rows; column {name!r} has {listed(sorted(map(str, shapes)))}")
    stacked = np.stack(rows) if rows else np.zeros((0, 1))
    return stacked[:, None] if stacked.ndim == 1 else stacked


def _truth(column: NDArray[Any], name: str) -> NDArray[np.bool_]:
    if column.dtype == bool or (column.dtype.kind in "iuf" and np.isin(column, (0, 1)).all()):
        return column.astype(bool)
    raise DataError(f"the column {name!r} for test must be true or false in every row; got {column[:3].tolist()}")


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    shown = ", ".join(names[:12]) or "none"
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
