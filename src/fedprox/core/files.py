"""Files written atomically: under another name, flushed to disk, then renamed.

Arrays are stored as safetensors, with a SHA-256 of their names, types, shapes and bytes in the header, so that a
changed bit is found when the file is read.
"""

from __future__ import annotations

import errno
import hashlib
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

__all__ = ["flush_folder", "json_line", "read_tensors", "read_values", "write_atomically", "write_tensors"]

_IS_WINDOWS = os.name == "nt"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: at any moment, also after a crash, the file is the old one or the new one."""
    if not path.name:  # such as "."
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
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
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Flush the rename itself; Windows cannot open folders, and does not need this."""
    if _IS_WINDOWS:
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], values: Mapping[str, Any] | None = None
) -> None:
    """Write named arrays as safetensors, with plain values (as JSON) beside them and a digest of both."""
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    text = json.dumps(dict(values or {}))
    header = json.dumps({"sha256": _digest(contiguous, text), "values": text})
    write_atomically(path, safetensors.numpy.save(contiguous, {_HEADER: header}))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any] | None]:
    """Read named arrays and the values of `write_tensors`; refuse a file whose digest is not that of its content.

    A safetensors file from elsewhere has no digest to check; its values are None.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist") from None
    except (OSError, ValueError, TypeError, AttributeError, MemoryError, safetensors.SafetensorError) as error:
        raise RunFolderError(f"{path} is not a readable safetensors file: {error}") from None
    if _HEADER not in metadata:
        return tensors, None
    try:
        header = json.loads(metadata[_HEADER])
        is_whole = header["sha256"] == _digest(tensors, header["values"])
        values = dict(json.loads(header["values"])) if is_whole else {}
    except (KeyError, TypeError, ValueError, AttributeError):
        is_whole = False
    if not is_whole:
        raise RunFolderError(f"{path} is damaged: its content does not match the digest that it was written with")
    return tensors, values


def read_values(path: Path) -> dict[str, Any]:
    """Read the values of `write_tensors` alone; the arrays are not read, so the digest is not checked."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return dict(json.loads(json.loads(file.metadata()[_HEADER])["values"]))
    except (OSError, KeyError, ValueError, TypeError, MemoryError, safetensors.SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None


_HEADER = "fedprox"  # one entry alone: safetensors does not keep the order of several


def _digest(tensors: Mapping[str, np.ndarray[Any, Any]], text: str) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        found.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ravel(array).view(np.uint8).data)
    return found.hexdigest()


def json_line(record: Mapping[str, Any]) -> str:
    """Return a record as one line of JSON; numbers that are not finite become null."""
    try:
        return json.dumps(record, allow_nan=False, default=_plain) + "\n"
    except ValueError:  # a number is not finite, which is rare; checking every number takes nine tenths of the time
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
