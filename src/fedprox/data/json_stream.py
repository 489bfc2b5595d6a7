"""Large JSON objects, read member by member: only the current member is decoded.

A file is mapped, not read, and a regular expression runs over its bytes for brackets and strings, which is enough to
find where a value ends. So a file of 500 MB takes the memory of its largest member.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedprox.core.errors import DataError
from fedprox.core.reading import reading, unpacked

__all__ = ["Node", "open_json"]

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_MARK = re.compile(rb'["\[\]{}]')
_SCALAR = re.compile(rb"[^\s,\]}]+")
_PIECE = 64 << 20  # bytes after which pages that were read are released


class Node:
    """A value in a file that has not been decoded."""

    def __init__(self, file: Path, data: Any, begin: int, within: str = "") -> None:
        self._file, self._data, self._begin, self._within = file, data, begin, within
        self._found_end: int | None = None

    @property
    def is_object(self) -> bool:
        """Whether the value is an object, so that it has `members`."""
        return self._data[self._begin : self._begin + 1] == b"{"

    def value(self) -> Any:
        """Decode the value."""
        return self._decode(self._begin, self._end())

    def members(self, kind: str = "member") -> Iterator[tuple[str, Node]]:
        """Yield the names and values of an object, in the order of the file; `kind` names them in errors."""
        at, given_back = self._skip(self._begin + 1), self._begin
        while self._data[at : at + 1] != b"}":
            name = _STRING.match(self._data, at)
            if name is None:
                raise self._error("a name in quotes is missing", at)
            colon = self._skip(name.end())
            if self._data[colon : colon + 1] != b":":
                raise self._error("a colon is missing", colon)
            text = self._decode(at, name.end())
            value = Node(self._file, self._data, self._skip(colon + 1), f", in {kind} {text!r}")
            yield text, value
            at = self._skip(value._end())
            if self._data[at : at + 1] == b",":
                at = self._skip(at + 1)
            elif self._data[at : at + 1] != b"}":
                raise self._error("a comma or the end of an object is missing", at)
            if at - given_back > _PIECE and isinstance(self._data, mmap.mmap):
                self._data.madvise(mmap.MADV_DONTNEED)
                given_back = at

    def _end(self) -> int:
        if self._found_end is None:
            self._found_end = self._look_for_end()
        return self._found_end

    def _look_for_end(self) -> int:
        begin, data = self._begin, self._data
        first = data[begin : begin + 1]
        if first not in (b"{", b"["):
            match = (_STRING if first == b'"' else _SCALAR).match(data, begin)
            if match is None:
                raise self._error("a value is missing", begin)
            return match.end()
        depth, at = 0, begin
        while (mark := _MARK.search(data, at)) is not None:
            at = mark.end()
            kind = mark[0]
            if kind == b'"':
                text = _STRING.match(data, mark.start())
                if text is None:
                    break
                at = text.end()
            elif kind in b"[{":
                depth += 1
            else:
                depth -= 1
                if depth == 0:
                    return at
        raise self._error("the value must end", begin)

    def _decode(self, begin: int, end: int) -> Any:
        try:
            return json.loads(self._data[begin:end])
        except UnicodeDecodeError as error:
            raise DataError(f"{self._file} is not UTF-8 text (byte {begin + error.start}){self._within}") from None
        except json.JSONDecodeError as error:
            at = begin + len(error.doc[: error.pos].encode())
            raise DataError(f"{self._file} is not valid JSON: {error.msg} {self._place(at)}") from None
        except ValueError:  # Python refuses to read them, since the time grows with the square of the digits
            most = sys.get_int_max_str_digits()
            raise DataError(
                f"{self._file} must have integers of at most {most} digits; one in the value {self._place(begin)} "
                "has more"
            ) from None
        except RecursionError:
            raise DataError(f"{self._file} has lists nested too deeply to be read, {self._place(begin)}") from None

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._data, at)
        return match.end() if match else at

    def _error(self, rule: str, at: int) -> DataError:
        return DataError(f"{self._file} is not valid JSON: {rule} {self._place(at)}; is the file cut off?")

    def _place(self, at: int) -> str:
        return f"at line {_line(self._data, min(at, len(self._data)))} (byte {at}){self._within}"


@contextmanager
def open_json(file: Path) -> Iterator[Node]:
    """Open a JSON file, plain or gzipped, as its outermost value."""
    packed = file.suffix == ".gz"
    with reading(file, "a complete gzip file of JSON" if packed else "a readable JSON file"):
        if packed:
            with gzip.open(file) as stream:
                data = unpacked(stream, str(file))
            yield _root(file, data)
        else:
            with file.open("rb") as content:
                if file.stat().st_size == 0:
                    raise DataError(f"{file} is not valid JSON: it is empty")
                with mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    yield _root(file, mapped)


def _root(file: Path, data: Any) -> Node:
    begin = _SPACE.match(data)
    return Node(file, data, begin.end() if begin else 0)


def _line(data: Any, at: int) -> int:
    lines, done = 1, 0
    while done < at:
        piece = data[done : min(at, done + (1 << 20))]
        lines += piece.count(b"\n")
        done += len(piece)
    return lines
