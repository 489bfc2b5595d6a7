"""Comma-separated files with a header line: one row per example, plain or gzipped, in UTF-8.

A column in which every entry is an integer is read as integers, one in which every entry is a number as numbers, and
one of `true` and `false` as booleans; any other is text.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.reading import reading, unpacked
from fedprox.data.columns import Columns
from fedprox.population import Population

__all__ = ["read_columns", "read_csv"]


def read_csv(
    path: str | Path,
    seed: int = 0,
    *,
    x_columns: Columns = (),
    y_column: str = "y",
    device_column: str = "device",
    test_column: str = "",
) -> Population:
    """Read a CSV file into a population.

    Args:
      x_columns: the columns of features; by default all that have no other role.
      y_column: labels, text or numbers, or real targets.
      device_column: the device of each row; "" puts all rows on one device, for `data.partition` to divide.
      test_column: true or false, or 1 and 0, for test rows; without it a fifth of each device's rows.
    """
    try:
        with reading(path, "a readable CSV file"):
            table = read_columns(Path(path))
        if "" in table and not x_columns:  # otherwise the numbers of the rows would be a feature
            raise DataError(
                "its columns must have names, and one has none (the index of a DataFrame?): name it, write the file "
                "with index=False, or list the features in `data.x_columns`"
            )
        return Population.from_frame(
            table, list(x_columns), y_column, device_column or None, test=test_column or None, seed=seed
        )
    except DataError as error:
        raise DataError(f"data file {path}: {error}") from None


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of a CSV file by name."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = unpacked(gzip.GzipFile(fileobj=io.BytesIO(content)), str(path))
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except FileNotFoundError:
        raise DataError("it does not exist") from None
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error) as error:
        hint = ": save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(f"it is not a readable CSV file in UTF-8: {error}{hint}") from None
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise DataError("it must have a header line with the names of its columns, and rows below it")
    names = [name.strip() for name in rows[0]]
    if len(names) == 1 and (other := [mark for mark in ";\t" if mark in names[0]]):
        raise DataError(f"its columns must be separated by commas; its header has {other[0]!r}: {names[0][:40]!r}")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise DataError(f"its columns must have different names; {repeated[0]!r} appears twice")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            entries = "one entry" if len(names) == 1 else f"{len(names)} entries"
            raise DataError(f"every row must have {entries}, as the header line; line {number} has {len(row)}")
    return {name: _typed([row[place].strip() for row in rows[1:]]) for place, name in enumerate(names)}


def _typed(entries: list[str]) -> NDArray[Any]:
    text = np.asarray(entries)
    for kind in (np.int64, np.float64):
        try:
            return text.astype(kind)
        except (ValueError, OverflowError):
            continue
    lower = np.char.lower(text)
    if np.isin(lower, ("true", "false")).all():
        return np.asarray(lower == "true")
    if (lower == "").any():  # numbers with gaps stay numbers, so that a missing label can be reported
        try:
            return np.where(lower == "", "nan", text).astype(np.float64)
        except ValueError:
            return np.asarray([entry or None for entry in entries], object)
    return text
