"""Files of what devices remember: each holds the states of some devices, is written once and never changed.

A segment is a safetensors file in `checkpoint/devices`: the tensor `device` with the numbers of its devices, and for
every array of a state one tensor with a first axis over the devices. It is written some rows at a time, and read row by
row, so that neither takes memory for more than a few states. Its digest is kept in the checkpoints that refer to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunFolderError
from fedprox.core.files import flush_folder

__all__ = ["Segment", "SegmentReader", "Signature", "signature_of", "verify_segment", "write_segment"]

Array = np.ndarray[Any, Any]
Signature = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Names, types and shapes of the arrays of a state; the states of a segment have the same."""

_KINDS = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_DEVICE, _STATE = "device", "state."
_BLOCK = 1 << 20
_AT_ONCE = 256  # states that are written together


@dataclass(frozen=True)
class Segment:
    """A segment as a checkpoint refers to it."""

    file: str
    rows: int
    sha256: str


def signature_of(named: Mapping[str, Array]) -> Signature:
    """Return names, types and shapes of the arrays of a state.

    >>> signature_of({"weight": np.zeros((2, 3), np.float32)})
    (('weight', 'float32', (2, 3)),)
    """
    return tuple((name, _name(named[name].dtype), named[name].shape) for name in sorted(named))


@lru_cache(maxsize=64)
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # NumPy creates it again each time


def write_segment(
    folder: Path, file: str, devices: Sequence[int], kind: Signature, read: Callable[[int], Mapping[str, Array]]
) -> Segment:
    """Write the states of `devices`, all of one kind; `read` gives the state of one."""
    columns = [(_STATE + name, dtype, shape) for name, dtype, shape in kind]
    begins, header = _header(len(devices), columns)
    temporary = folder / f".{file}.new"
    try:
        with temporary.open("w+b") as opened:
            opened.write(header)
            opened.write(np.asarray(devices, np.int64).tobytes())
            places = [len(header) + begin for begin in begins[1:]]
            for row in range(0, len(devices), _AT_ONCE):
                states = [read(device) for device in devices[row : row + _AT_ONCE]]
                for place, (name, _, _) in zip(places, kind, strict=True):
                    content = b"".join(np.ascontiguousarray(state[name]).tobytes() for state in states)
                    opened.seek(place + row * (len(content) // len(states)))
                    opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
            digest = _digest(opened)
        temporary.replace(folder / file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(folder)
    return Segment(file, len(devices), digest)


def verify_segment(folder: Path, segment: Segment) -> None:
    """Refuse a segment that is missing, or has another content than when it was written."""
    path = folder / segment.file
    try:
        with path.open("rb") as opened:
            digest = _digest(opened)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from None
    if digest != segment.sha256:
        raise RunFolderError(f"{path} is damaged: its content does not match the digest that it was written with")


class SegmentReader:
    """An open segment, from which single states are read."""

    def __init__(self, folder: Path, segment: Segment) -> None:
        self.segment = segment
        self._path = folder / segment.file
        self._file = self._opened()
        (length,) = struct.unpack("<Q", self._file.read(8))
        header: dict[str, Any] = json.loads(self._file.read(length))
        self._begin = 8 + length
        self.devices: NDArray[np.int64] = np.frombuffer(self._read(*header[_DEVICE]["data_offsets"]), np.int64)
        self._columns = {
            name.removeprefix(_STATE): (_dtype(entry["dtype"]), tuple(entry["shape"][1:]), *entry["data_offsets"])
            for name, entry in header.items()
            if name.startswith(_STATE)
        }
        self.signature: Signature = tuple(
            (name, dtype.name, shape) for name, (dtype, shape, _, _) in sorted(self._columns.items())
        )

    def state(self, row: int) -> dict[str, Array]:
        """Return the arrays of a state by name."""
        found = {}
        for name, (dtype, shape, begin, end) in self._columns.items():
            size = (end - begin) // len(self.devices)
            content = self._read(begin + row * size, begin + (row + 1) * size)
            found[name] = np.frombuffer(content, dtype).reshape(shape)
        return found

    def close(self) -> None:
        """Close the file until it is read again."""
        self._file.close()

    def _opened(self) -> FileIO:
        file = FileIO(self._path)
        weakref.finalize(self, file.close)
        return file

    def _read(self, begin: int, end: int) -> bytearray:
        content = bytearray(end - begin)  # writable, like any other array
        if self._file.closed:
            self._file = self._opened()
        self._file.seek(self._begin + begin)
        if self._file.readinto(content) != len(content):
            raise RunFolderError(f"{self._file.name} is shorter than it was")
        return content


def _header(rows: int, columns: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[list[int], bytes]:
    """Return where each tensor begins in the data, and the header of a safetensors file."""
    entries: dict[str, Any] = {}
    begins, end = [], 0
    for name, dtype, shape in [(_DEVICE, "int64", ()), *columns]:
        if dtype not in _KINDS:
            raise RunFolderError(f"the state of a device must be arrays of numbers; got {dtype} in {name!r}")
        begins.append(end)
        size = rows * _dtype(_KINDS[dtype]).itemsize * int(np.prod(shape, dtype=np.int64))
        entries[name] = {"dtype": _KINDS[dtype], "shape": [rows, *shape], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return begins, struct.pack("<Q", len(text)) + text


def _dtype(kind: str) -> np.dtype[Any]:
    if kind == "BF16":
        import ml_dtypes  # of JAX

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_NAMES[kind])


def _digest(opened: IO[bytes]) -> str:
    found = hashlib.sha256()
    opened.seek(0)
    while block := opened.read(_BLOCK):
        found.update(block)
    return found.hexdigest()
