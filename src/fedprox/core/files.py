"""Files that are either whole or not there: written under another name, flushed to disk, then renamed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from fedprox.core.errors import RunFolderError

__all__ = ["json_line", "read_tensors", "write_atomically", "write_tensors"]

_IS_WINDOWS = os.name == "nt"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; whoever reads it, or a crash at any moment, sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    """Flush the rename itself; Windows opens no folders, and needs no such thing."""
    if _IS_WINDOWS:
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays as safetensors."""
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}  # a number stays a number
    write_atomically(path, safetensors.numpy.save(contiguous, dict(metadata or {})))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """Read named arrays and the metadata of a safetensors file."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise RunFolderError(f"{path} is not a readable safetensors file: {error}") from None


def json_line(record: Mapping[str, Any]) -> str:
    """Return a record as one line of JSON; numbers that are not finite become null."""
    return json.dumps(_plain(record), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
