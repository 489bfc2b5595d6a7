"""Text files as they are distributed: plain, gzipped, bzip2ed, or the one file with a given ending in a zip archive."""

from __future__ import annotations

import bz2
import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedprox.core.errors import DataError
from fedprox.core.reading import Bounded, check_archive, reading

__all__ = ["open_bytes", "read_text"]

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}


@contextmanager
def open_bytes(path: Path, member: str = ".txt") -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked; from a zip archive its file whose name ends in `member`."""
    with reading(path, "a complete file (it is cut off or corrupt)"):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                check_archive(archive, str(path))
                inside = [name for name in archive.namelist() if name.endswith(member)]
                if not inside:
                    raise DataError(f"{path} must hold a file *{member}; it holds {', '.join(archive.namelist()[:5])}")
                with archive.open(inside[0]) as file:
                    yield file
        else:
            with _OPENERS.get(path.suffix, open)(path, "rb") as file:
                yield io.BufferedReader(Bounded(file, str(path))) if path.suffix in _OPENERS else file


def read_text(path: Path, member: str = ".txt") -> str:
    """Return the content of a text file, which must be UTF-8."""
    with open_bytes(path, member) as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path} is not UTF-8 text (line {line}, byte {error.start})") from None
