"""The boundary where files from outside are read: any fault in one becomes a one-sentence error.

A reader does its work inside `reading`. What the operating system, NumPy, Arrow or a parser raises there, lack of
memory included, becomes a `FedProxError` that names the file; our own errors pass unchanged. Compressed files end at a
stated size: half of this machine's memory, beyond which they could not be used anyway.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedprox.core.errors import DataError, FedProxError
from fedprox.core.machine import total_memory

__all__ = ["Bounded", "check_archive", "most_unpacked", "printable", "read_json", "reading", "reason", "unpacked"]

_CHUNK = 1 << 20
_USUAL = 16 << 30  # bytes of memory where a system does not say
_MOST_WORDS = 200  # characters of another library's message


@contextmanager
def reading(
    path: str | Path, kind: str, *, name: str = "", missing: str = "", error: type[FedProxError] = DataError
) -> Iterator[None]:
    r"""Turn any failure while `path` is read into a one-sentence error.

    Args:
      path: the file or folder.
      kind: what it should have been, such as "a readable npz file".
      name: its name in the sentence; defaults to the path.
      missing: the sentence where it does not exist.
      error: the class of the error.

    >>> with reading("x.npz", "a readable npz file"):
    ...     raise ValueError("bad magic\nnumber")
    Traceback (most recent call last):
    fedprox.core.errors.DataError: x.npz is not a readable npz file: bad magic
    """
    called = printable(name or path)
    try:
        yield
    except FedProxError:
        raise
    except FileNotFoundError as failure:
        raise error(missing or f"{called} does not exist") from failure
    except MemoryError as failure:
        raise error(f"{called} is not {kind} that fits into this machine's memory") from failure
    except OSError as failure:
        if failure.errno is not None:
            raise error(f"{called} cannot be read: {failure.strerror}") from failure
        raise error(f"{called} is not {kind}: {reason(failure)}") from failure
    except Exception as failure:  # a parser may fail in any way on bytes that were made to break it
        raise error(f"{called} is not {kind}: {reason(failure)}") from failure


def reason(failure: BaseException) -> str:
    """Return an error's message as part of a sentence: its first line, cut where it is long."""
    lines = printable(str(failure)).strip().splitlines()
    text = lines[0].strip() if lines else type(failure).__name__
    return text if len(text) <= _MOST_WORDS else text[:_MOST_WORDS] + "…"


def printable(text: object) -> str:
    r"""Return text that any terminal can print: bytes of file names that are not UTF-8 are escaped.

    >>> printable("caf\udce9")
    'caf\\udce9'
    """
    return str(text).encode("utf-8", "backslashreplace").decode()


def read_json(content: bytes) -> Any:
    r"""Parse JSON so that every string can be written again: half of a surrogate pair stays an escape.

    >>> read_json(b'{"name": "\\ud800"}')
    {'name': '\\ud800'}
    """
    value = json.loads(content)
    return value if content.isascii() and b"\\u" not in content else _printable_texts(value)


def _printable_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): _printable_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_printable_texts(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


def most_unpacked() -> int:
    """Return how large a compressed file may be when unpacked, in bytes: half of the machine's memory."""
    return (total_memory() or _USUAL) // 2


class Bounded(io.RawIOBase):
    """A stream that ends with an error after `most` bytes; wrap a decompressing stream in it."""

    def __init__(self, stream: IO[bytes] | Any, name: str, most: int | None = None) -> None:
        self._stream, self._name = stream, name
        self._most = most_unpacked() if most is None else most
        self._left = self._most

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        piece = self._stream.read(len(buffer))
        self._left -= len(piece)
        if self._left < 0:
            raise _too_large(self._name, self._most)
        buffer[: len(piece)] = piece
        return len(piece)


def unpacked(stream: IO[bytes] | Any, name: str, most: int | None = None) -> bytes:
    """Return all bytes of a decompressing stream, or refuse it at `most` bytes."""
    bounded, pieces = Bounded(stream, name, most), []
    while piece := bounded.read(_CHUNK):
        pieces.append(piece)
    return b"".join(pieces)


def check_archive(archive: zipfile.ZipFile, name: str, most: int | None = None) -> None:
    """Refuse a zip archive that is too large when unpacked; `zipfile` reads no more than a member states."""
    limit = most_unpacked() if most is None else most
    if sum(member.file_size for member in archive.infolist()) > limit:
        raise _too_large(name, limit)


def _too_large(name: str, most: int) -> DataError:
    return DataError(f"{printable(name)} must have at most {most:,} bytes when it is unpacked; it has more")
