"""Examples for a saved model to label: the features of an npz, npy, CSV or Parquet file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import DataError
from fedprox.core.reading import reading
from fedprox.data.arrow import read_features
from fedprox.data.csv import read_columns
from fedprox.population.table import feature_columns

__all__ = ["column_roles", "read_examples"]

_ROLES = {"x_columns": (), "y_column": "y", "device_column": "device", "test_column": ""}


def column_roles(config: Config) -> dict[str, Any]:
    """Return how a run's data names its columns, with the defaults of `[data]` where it does not."""
    given = config.data.given()
    return {key: given.get(key, default) for key, default in _ROLES.items()}


def read_examples(path: str | Path, config: Config) -> NDArray[Any]:
    """Read the features of a file as the run with this config reads its own.

    Of a table these are the run's `data.x_columns`, and else all columns that are not the labels, devices or marks of
    test rows of the run's data, whether the file has those or not. An npz file has them as the array `x`.
    """
    kind = data.find_settings(str(path))["name"]
    if kind not in ("csv", "arrow"):
        return _read_array(path)
    roles = column_roles(config)
    others = [roles[key] for key in ("y_column", "device_column", "test_column") if roles[key]]
    if kind == "arrow":  # whose column `test` has the marks where no other is named
        return read_features(path, list(roles["x_columns"]), [*others, "test"])
    try:
        with reading(path, "a readable CSV file"):
            return feature_columns(read_columns(Path(path)), list(roles["x_columns"]), others)
    except DataError as error:
        raise DataError(f"data file {path}: {error}") from None


def _read_array(path: str | Path) -> NDArray[Any]:
    """Read the array `x` of an npz file, or the one of an npy file."""
    try:
        with Path(path).open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            if "x" not in content.files:
                raise DataError(f"data file {path} must hold the array x; it has {', '.join(content.files)}")
            examples: NDArray[Any] = content["x"]
            return examples
    except FileNotFoundError:
        raise DataError(f"data file {path} does not exist") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"data file {path} is not a readable npz or npy file: {error}") from None
