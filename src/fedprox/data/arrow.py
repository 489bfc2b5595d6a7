"""Tables in Arrow or Parquet files: a column of devices, a column of labels or targets, and the features.

The features are a column of lists of one length, or columns of numbers. A column of true and false marks test rows;
without it a fifth of each device's rows is drawn with the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError, nearest
from fedprox.core.extras import needs_extra
from fedprox.core.reading import reading
from fedprox.data.columns import Columns
from fedprox.population import Population
from fedprox.population.table import HINTS, listed

__all__ = ["read_arrow", "read_features"]


def read_arrow(
    path: str | Path,
    seed: int = 0,
    *,
    x_columns: Columns = (),
    y_column: str = "y",
    device_column: str = "device",
    test_column: str = "",
) -> Population:
    """Read a Parquet file or an Arrow (Feather) file into a population.

    Args:
      x_columns: the columns of features, or one column of lists; by default `x` if it exists, otherwise all that have
        no other role.
      y_column: labels or real targets.
      device_column: the device of each row; "" puts all rows on one device, for `data.partition` to divide.
      test_column: true for test rows; by default `test` if it exists.
    """
    with _open_table(path) as table:
        marks = test_column or ("test" if "test" in table.column_names else "")
        roles = [name for name in (y_column, device_column, marks) if name]
        _check_columns(table, path, [*x_columns, *roles])
        try:
            return Population.from_arrays(
                _features(table, list(x_columns), roles),
                _column(table, y_column),
                _column(table, device_column) if device_column else None,
                test=_column(table, marks) if marks else None,
                seed=seed,
            )
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def read_features(path: str | Path, x_columns: Sequence[str], others: Sequence[str]) -> NDArray[Any]:
    """Read the features alone: `x_columns`, or `x` if it exists, otherwise all columns but `others`."""
    with _open_table(path) as table:
        _check_columns(table, path, x_columns)
        try:
            return _features(table, list(x_columns), others)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


@contextmanager
def _open_table(path: str | Path) -> Iterator[Any]:
    with needs_extra("arrow", "`data.name` = 'arrow'"):
        import pyarrow
        import pyarrow.feather
        import pyarrow.parquet
    file = Path(path)
    with reading(path, "a readable Arrow or Parquet file", name=f"data file {path}"):
        with file.open("rb") as content:
            is_parquet = content.read(4) == b"PAR1"
        table = pyarrow.parquet.read_table(file) if is_parquet else pyarrow.feather.read_table(file)
        table.validate(full=True)  # offsets and lengths that point outside would be followed unchecked
        yield table


def _check_columns(table: Any, path: str | Path, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.column_names:
            hint = nearest(name, table.column_names) or HINTS.get(name, "")
            raise DataError(
                f"data file {path} must have the columns {', '.join(names)}; {name} is missing, and it has "
                f"{listed(table.column_names)}{hint}"
            )


def _column(table: Any, name: str) -> NDArray[Any]:
    column = table[name]
    if column.null_count:
        raise DataError(f"the column {name} must have a value in every row; {column.null_count} have none")
    return np.asarray(column.to_numpy())


def _features(table: Any, names: list[str], roles: Sequence[str]) -> NDArray[Any]:
    if not names:
        names = ["x"] if "x" in table.column_names else [name for name in table.column_names if name not in roles]
    if not names:
        raise DataError("there must be a column x, or columns of numbers besides y and device; found none")
    if len(names) > 1 or not hasattr(table[names[0]].combine_chunks(), "value_lengths"):
        return np.stack([_column(table, name) for name in names], axis=1)
    column = table[names[0]].combine_chunks()
    if column.null_count:
        raise DataError(f"the column {names[0]} must have a list in every row; some have none")
    values = column.flatten().to_numpy(zero_copy_only=False)
    lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) != 1:
        raise DataError(f"the column {names[0]} must have lists of one length; got {lengths.min()} to {lengths.max()}")
    return values.reshape(len(column), -1)
