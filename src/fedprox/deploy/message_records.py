"""Records of Flower with named arrays and a few numbers, written and read with care.

Arrays travel as the bytes of `.npy` files. Their names, precision and shapes are those of the model, which both sides
know: `read_array` compares the bytes with what is expected and parses nothing; nothing is ever unpickled. What a node
has sent may be anything, and a reason that quotes it is one short line.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedprox.core.errors import RunError, short

__all__ = [
    "ARRAYS",
    "Named",
    "WrongMessageError",
    "attempt",
    "bounded",
    "make_records",
    "read_array",
    "read_arrays",
    "read_number",
    "read_values",
    "read_whole",
]

Named = dict[str, NDArray[Any]]

ARRAYS, _VALUES = "arrays", "values"
_REASON = 200  # characters of a reason that may hold what a node has sent
Result = TypeVar("Result")


class WrongMessageError(RunError):
    """A message that does not hold what it should."""


def read_array(data: bytes, like: NDArray[Any]) -> NDArray[Any]:
    """Return the array in bytes that must be those of a `.npy` file of the precision and shape of `like`.

    What is expected is known, so that nothing is parsed: the header must be the expected one, byte for byte.

    >>> buffer = io.BytesIO()
    >>> np.save(buffer, np.array([1.5, 2.5], np.float32))
    >>> read_array(buffer.getvalue(), like=np.zeros(2, np.float32))
    array([1.5, 2.5], dtype=float32)
    """
    header = _header(like.dtype.str, like.shape)
    if len(data) != len(header) + like.nbytes or not data.startswith(header):
        raise WrongMessageError(
            f"an array must be the {len(header) + like.nbytes} bytes of a .npy file of {like.dtype} and shape "
            f"{like.shape}; got {len(data)} bytes with another content"
        )
    return np.frombuffer(data, like.dtype, offset=len(header)).reshape(like.shape)


@lru_cache(maxsize=256)
def _header(precision: str, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": precision, "fortran_order": False, "shape": shape})
    return file.getvalue()


def attempt(read: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """Return what a message holds, or why it cannot be read: a message may hold anything, and must not end the server.

    >>> attempt(lambda: int("7")), attempt(lambda: int("seven"))[1]
    ((7, None), "ValueError: invalid literal for int() with base 10: 'seven'")
    """
    try:
        return read(), None
    except WrongMessageError as error:
        return None, bounded(str(error))
    except Exception as error:  # whatever Flower's records, NumPy or Python raise on what a node has sent
        return None, bounded(f"{type(error).__name__}: {error}")


def bounded(reason: str) -> str:
    """Return a reason that may hold what a node has sent, on one line of at most 200 characters."""
    line = " ".join(reason[: _REASON * 4].split())
    return line if len(line) <= _REASON else line[: _REASON - 3] + "..."


def make_records(values: Mapping[str, Any], arrays: Named | None = None, **more: Named | None) -> RecordDict:
    """Return a message with values and arrays; those that are None are left out."""
    records: dict[str, Any] = {_VALUES: ConfigRecord(dict(values))}
    for key, named in {ARRAYS: arrays, **more}.items():
        if named is not None:
            records[key] = ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in named.items()})
    return RecordDict(records)


def read_arrays(records: RecordDict, key: str, like: Named) -> Named:
    """Return the arrays under a key, whose names, precision and shapes must be those of `like`."""
    if key not in records.array_records:
        raise WrongMessageError(f"a message must hold the arrays {key!r}; it has none")
    sent = records.array_records[key]
    if missing := sorted(like.keys() - sent.keys()):
        raise WrongMessageError(f"{missing[0]!r} is missing")
    if extra := sorted(sent.keys() - like.keys()):
        raise WrongMessageError(f"{bounded(extra[0])!r} is not part of the model")
    named = {}
    for name, expected in like.items():
        try:
            named[name] = read_array(bytes(sent[name].data), expected)
        except WrongMessageError as error:
            raise WrongMessageError(f"{name!r}: {error}") from None
    return named


def read_values(records: RecordDict) -> Mapping[str, Any]:
    """Return the values of a message."""
    if _VALUES not in records.config_records:
        raise WrongMessageError("a message must hold values; it has none")
    return records.config_records[_VALUES]


def read_whole(values: Mapping[str, Any], name: str) -> int:
    """Return a value that must be an integer of at least 0."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise WrongMessageError(f"`{name}` must be an integer >= 0; got {short(value)}")
    return value


def read_number(values: Mapping[str, Any], name: str) -> float:
    """Return a value that must be a number."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongMessageError(f"`{name}` must be a number; got {short(value)}")
    return float(value)
