"""SHA-256 of original files: the known ones, and those of downloads without a published checksum.

A download without a known checksum is examined when it arrives, and its digest is kept in `checksums.txt` beside it (in
the form of `sha256sum`), so that a later change is found.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path

from fedprox.core.errors import DataError
from fedprox.core.files import write_atomically
from fedprox.core.reading import Bounded, reading
from fedprox.data.sources import File

__all__ = ["check", "digests", "record", "sha256"]

_RECORDS = "checksums.txt"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with reading(path, "a readable file"), path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by its name, as a prepared population records them."""
    return {path.name: sha256(path) for path in sorted(paths)}


def check(path: Path, file: File) -> None:
    """Refuse a file whose checksum differs from the known one, or from the one at its download."""
    expected, why = file.sha256, "it is cut off, corrupt or another file"
    if expected is None:
        expected, why = _recorded(path.parent).get(path.name), "it has changed since it was downloaded"
    if expected is None:
        return
    found = sha256(path)
    if found != expected and not (file.content and _content(path) == file.content):
        raise DataError(f"{path} must have the SHA-256 {expected}; got {found}: {why}")


def record(path: Path) -> None:
    """Keep the digest of a download whose checksum is not known."""
    known = _recorded(path.parent) | {path.name: sha256(path)}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items()))
    write_atomically(path.parent / _RECORDS, text.encode())


def _recorded(folder: Path) -> dict[str, str]:
    try:
        lines = (folder / _RECORDS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    return {name: digest for digest, separator, name in (line.partition("  ") for line in lines) if separator}


def _content(path: Path) -> str:
    """Return the SHA-256 of what a gzipped file holds."""
    try:
        with gzip.open(path) as content:
            return hashlib.file_digest(Bounded(content, str(path)), "sha256").hexdigest()
    except (OSError, EOFError, zlib.error):
        return ""
