"""Labelled arrays in one `.npz` file: `x`, `y`, `device` and optionally the mask `test`."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
                arrays = {key: _array(file, key, name) for key in ("x", "y", "device", "test") if key in file.files}
                found = ", ".join(file.files) or "none"
        for key in ("x", "y", "device"):
            if key not in arrays:
                raise DataError(f"{name} must hold the arrays x, y and device; {key} is missing, and it has {found}")
        try:
            return Population.from_arrays(**arrays, seed=seed)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def _array(file: Mapping[str, Any], key: str, name: str) -> Any:
    try:
        return file[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{name}: {key} must be numbers or text; it has Python objects, which are never read: convert it before it "
            f"is saved, as with {key}.astype(str)"
        ) from None
