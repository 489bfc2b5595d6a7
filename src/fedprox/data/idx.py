"""The idx format of MNIST and EMNIST: a magic number that gives type and rank, the sizes, then the bytes."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.reading import reading, unpacked

__all__ = ["parse_idx", "read_idx"]


def read_idx(path: str | Path, rank: int) -> NDArray[np.uint8]:
    """Read a file of unsigned bytes with `rank` dimensions, gzipped or not."""
    with reading(path, "a readable idx file"), Path(path).open("rb") as file:
        return parse_idx(file, rank, str(path))


def parse_idx(file: BinaryIO | Any, rank: int, name: str) -> NDArray[np.uint8]:
    """Read an idx array from an open file; errors call it `name`."""
    content = file.read()
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as stream:
                content = unpacked(stream, name)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{name} is not a complete gzip file: {error}") from None
    header = 4 + 4 * rank
    if len(content) < header or content[:4] != bytes([0, 0, 8, rank]):
        raise DataError(f"{name} must be an idx file of unsigned bytes with {rank} dimensions; its first bytes are not")
    shape = struct.unpack(f">{rank}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(f"{name} must have {shape} values, as its header says; got {len(content) - header} bytes")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
