"""Digests of the parts of a stored column, so that data are checked as they are read.

A column of a population on disk may be too large to be read when it is opened. Its manifest has the CRC-32 of every
mebibyte of it, and whatever a round or a measurement reads is first compared with them, each part once. Labels are
checked against the number of classes at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError

__all__ = ["PART", "ColumnParts", "PartDigests"]

PART = 1 << 20  # bytes


class PartDigests:
    """The digests of a column's parts, while the column is written.

    >>> digests = PartDigests()
    >>> digests.add(b"ab")
    >>> digests.add(b"c")
    >>> digests.finish() == [zlib.crc32(b"abc")]
    True
    """

    def __init__(self) -> None:
        self._parts: list[int] = []
        self._current = self._length = 0

    def add(self, content: bytes | memoryview) -> None:
        """Add the next bytes."""
        begin = 0
        while begin < len(content):
            end = begin + PART - self._length
            taken = content[begin:end]
            self._current = zlib.crc32(taken, self._current)
            self._length += len(taken)
            begin = end
            if self._length == PART:
                self._parts.append(self._current)
                self._current = self._length = 0

    def finish(self) -> list[int]:
        """Return the digests."""
        return [*self._parts, self._current] if self._length else list(self._parts)


class ColumnParts:
    """A stored column whose parts are checked when they are first used."""

    def __init__(self, file: Path, column: NDArray[Any], schema: Mapping[str, Any], most: int = 0) -> None:
        digests = schema["parts"]
        self._bytes = column.reshape(-1).view(np.uint8)
        count = -(-len(self._bytes) // PART)
        if not isinstance(digests, list) or len(digests) != count:
            raise DataError(f"the manifest must have a digest for each of {count} parts of {file}")
        self._file, self._column, self._digests = file, column, digests
        self._row = max(column[:1].nbytes, 1)
        self._most = most  # labels must be below; 0 where there are none
        self._known = np.zeros(count, bool)

    def check(self, begin: int, end: int) -> None:
        """Check the parts that hold rows `begin` to `end`."""
        first, last = begin * self._row // PART, -(-end * self._row // PART)
        for part in np.flatnonzero(~self._known[first:last]) + first:
            self._check_part(int(part))
            self._known[part] = True

    def _check_part(self, part: int) -> None:
        content = self._bytes[part * PART : (part + 1) * PART]
        if zlib.crc32(content.data) != self._digests[part]:
            raise DataError(
                f"{self._file} must have the digests of its manifest; bytes {part * PART} to "
                f"{part * PART + len(content)} of its data have changed: prepare the data again"
            )
        if self._most:
            labels = content.view(self._column.dtype)  # a part holds whole labels
            if labels.min() < 0 or labels.max() >= self._most:
                wrong = labels.min() if labels.min() < 0 else labels.max()
                raise DataError(f"{self._file} must have labels from 0 to {self._most - 1}; got {wrong}")
