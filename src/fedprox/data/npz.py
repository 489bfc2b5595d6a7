"""Labelled arrays in one `.npz` file: `x`, `y`, `device` and optionally the mask `test`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from fedprox.core.errors import DataError
from fedprox.core.reading import check_archive, reading
from fedprox.population import Population

__all__ = ["read_npz"]


def read_npz(path: str | Path, seed: int = 0) -> Population:
    """Read an npz file into a population; without `test` a fifth of each device's rows is drawn with `seed`."""
    name = f"data file {path}"
    with reading(path, "a readable npz file", name=name):
        with Path(path).open("rb") as raw:
            with zipfile.ZipFile(raw) as archive:
                check_archive(archive, name)
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                arrays = {key: file[key] for key in ("x", "y", "device", "test") if key in file.files}
        for key in ("x", "y", "device"):
            if key not in arrays:
                raise DataError(f"data file {path} must hold the arrays x, y and device; {key} is missing")
        try:
            return Population.from_arrays(**arrays, seed=seed)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
