"""Tables in Arrow or Parquet files: a column `device`, a column `y`, and the features.

The features are a column `x` of lists of one length, or all other columns of numbers in their order. A column `test`
of true and false marks test rows; without it a fifth of each device's rows is drawn with the seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.extras import needs_extra
from fedprox.core.reading import reading
from fedprox.population import Population

__all__ = ["read_arrow"]

_NAMED = ("x", "y", "device", "test")


def read_arrow(path: str | Path, seed: int = 0) -> Population:
    """Read a Parquet file or an Arrow (Feather) file into a population."""
    with needs_extra("arrow", "`data.name` = 'arrow'"):
        import pyarrow
        import pyarrow.feather
        import pyarrow.parquet
    file = Path(path)
    with reading(path, "a readable Arrow or Parquet file", name=f"data file {path}"):
        with file.open("rb") as content:
            is_parquet = content.read(4) == b"PAR1"
        table = pyarrow.parquet.read_table(file) if is_parquet else pyarrow.feather.read_table(file)
        table.validate(full=True)  # offsets and lengths that point outside would be read as they are
        for name in ("y", "device"):
            if name not in table.column_names:
                raise DataError(f"data file {path} must have the columns y and device; {name} is missing")
        try:
            return Population.from_arrays(
                _features(table),
                _column(table, "y"),
                _column(table, "device").astype(str),
                test=_column(table, "test") if "test" in table.column_names else None,
                seed=seed,
            )
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def _column(table: Any, name: str) -> NDArray[Any]:
    column = table[name]
    if column.null_count:
        raise DataError(f"the column {name} must have a value in every row; {column.null_count} have none")
    return np.asarray(column.to_numpy())


def _features(table: Any) -> NDArray[Any]:
    if "x" in table.column_names:
        column = table["x"].combine_chunks()
        if column.null_count:
            raise DataError("the column x must have a list in every row; some have none")
        values = column.flatten().to_numpy(zero_copy_only=False)
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) != 1:
            raise DataError(f"the column x must have lists of one length; got {lengths.min()} to {lengths.max()}")
        return values.reshape(len(column), -1)
    names = [name for name in table.column_names if name not in _NAMED]
    if not names:
        raise DataError("there must be a column x, or columns of numbers beside y and device; found none")
    return np.stack([_column(table, name) for name in names], axis=1)
