"""A file of JSON lines that grows: one record per line, with a running digest.

The digest is updated with every line that is appended, so that a checkpoint can record the file's content without
reading it again. A file matches a checkpoint if its first `bytes` bytes have the digest `sha256`; the rest was written
later.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fedprox.core.errors import RunFolderError
from fedprox.core.files import json_line
from fedprox.core.reading import read_json

__all__ = ["Beginning", "RecordFile", "read_beginning", "read_records"]

_BLOCK = 1 << 20  # bytes read at once


class Beginning:
    """The first bytes of a file: how many, and their digest so far."""

    def __init__(self) -> None:
        self.bytes = 0
        self._sha256 = hashlib.sha256()

    def add(self, content: bytes) -> None:
        """Add the next bytes."""
        self.bytes += len(content)
        self._sha256.update(content)

    def mark(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return {"bytes": self.bytes, "sha256": self._sha256.hexdigest()}


class RecordFile:
    """A file of records that is being written; it holds a beginning of what was there."""

    def __init__(self, path: Path, beginning: Beginning) -> None:
        self._beginning = beginning
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._file.truncate(beginning.bytes)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record."""
        line = json_line(record).encode()
        rest = line
        while rest:
            rest = rest[self._file.write(rest) :]  # a nearly full disk may accept only a part
        self._beginning.add(line)

    def mark(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the file, after it has reached the disk."""
        os.fsync(self._file.fileno())
        return self._beginning.mark()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_beginning(path: Path, length: int) -> Beginning | None:
    """Read the first `length` bytes of a file; None where it does not have as many."""
    beginning = Beginning()
    try:
        with path.open("rb") as file:
            while block := file.read(min(_BLOCK, length - beginning.bytes)):
                beginning.add(block)
    except FileNotFoundError:
        return beginning if length == 0 else None
    return beginning if beginning.bytes == length else None


def read_records(file: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield each complete record of a file with its line; a half-written last line is left out."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {error.strerror}") from None
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = read_json(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise RunFolderError(f"{file} must hold one JSON object per line; line {number} is not one")
        yield record, line + b"\n"
