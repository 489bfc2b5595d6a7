"""Labelled arrays in one `.npz` file: `x`, `y`, `device` and optionally the mask `test`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from fedprox.core.errors import DataError
from fedprox.population import Population

__all__ = ["read_npz"]


def read_npz(path: str | Path, seed: int = 0) -> Population:
    """Read an npz file into a population; without `test` a fifth of each device's rows is drawn with `seed`."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("x", "y", "device", "test") if name in file.files}
    except FileNotFoundError:
        raise DataError(f"data file {path} does not exist") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"data file {path} is not a readable npz file: {error}") from None
    for name in ("x", "y", "device"):
        if name not in arrays:
            raise DataError(f"data file {path} must hold the arrays x, y and device; {name} is missing")
    try:
        return Population.from_arrays(**arrays, seed=seed)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
