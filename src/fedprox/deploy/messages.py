"""What goes over the wire: named arrays and a few numbers, in Flower's records.

    to a device    train: its number, w^t, where the method has them c_k, a_k and a starting point, round, mu, budget,
                   seconds; which personal parameters count
                   evaluate: w; which personal parameters count
                   query: nothing
                   query.gradient: w^t
    back           train: w_k, steps, seconds, samples per second, F_k(w^t), gamma
                   evaluate: loss, accuracy and the config's metrics on its samples; where the dissimilarity is
                   measured, grad F_k(w)
                   query: its number and how many samples it has
                   query.gradient: grad F_k(w^t)

A device solves the subproblem h_k (Equation 2 with a linear term and an anchor) and sends back its iterate, whatever
the method: what else a method makes of it, and what it remembers for a device, stays on the server. Personal and frozen
parameters are part of no message.

Arrays travel as the bytes of `.npy` files. Their names, precision and shapes are those of the model, which both sides
know: `read_array` compares the bytes with what is expected and parses nothing; nothing is ever unpickled.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedprox.core.errors import RunError, short
from fedprox.methods.device_view import Mu

__all__ = [
    "Evaluation",
    "Gradient",
    "Instruction",
    "Introduction",
    "ModelQuery",
    "Named",
    "PersonalVersion",
    "WorkReport",
    "WrongMessageError",
    "attempt",
    "bounded",
    "read_array",
]

Named = dict[str, NDArray[Any]]

_ARRAYS, _LINEAR, _ANCHOR, _START, _VALUES = "arrays", "linear", "anchor", "start", "values"
_PERSONAL = "personal"
_VERSION = r"(?:[0-9]{1,9}-[0-9a-f]{16})?"
_METRIC = "metric."  # before the name of a metric
_MOST_SAMPLES = 2**31 - 1  # of a device, as of a population
_REASON = 200  # characters of a reason that may hold what a node has sent
Result = TypeVar("Result")


class WrongMessageError(RunError):
    """A message that does not hold what it should."""


@dataclass(frozen=True)
class PersonalVersion:
    """Which personal parameters a device is to use, and under which name it keeps the new ones."""

    run: str
    used: str = ""  # "": those that all devices start with
    written: str = ""  # "": none is written

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> PersonalVersion | None:
        """Read it; the names become those of files, and so may hold nothing else."""
        if _PERSONAL not in values:
            return None
        names = values[_PERSONAL]
        patterns = (r"[0-9a-f]{32}", _VERSION, _VERSION)
        if not isinstance(names, list) or len(names) != len(patterns):
            raise WrongMessageError(f"`{_PERSONAL}` must be a run and two versions; got {short(names)}")
        for name, pattern in zip(names, patterns, strict=True):
            if not isinstance(name, str) or re.fullmatch(pattern, name) is None:
                raise WrongMessageError(f"`{_PERSONAL}` must be a run and two versions; got {short(name)}")
        return cls(*names)


@dataclass(frozen=True)
class Instruction:
    """What a device is asked to do in a round."""

    device: int  # who is meant
    params: Named  # w^t
    linear: Named | None  # c_k
    round: int
    mu: Mu
    budget: int  # in mini-batch steps
    seconds: float  # it may work; 0: as long as it takes
    anchor: Named | None = None  # a_k; None: w^t
    start: Named | None = None  # None: w^t
    personal: PersonalVersion | None = None
    gamma: float | None = None  # at which the solver may stop; None: that of the config

    def to_records(self) -> RecordDict:
        """Return the message."""
        values = {name: getattr(self, name) for name in ("device", "round", "budget", "seconds")}
        values |= {} if self.gamma is None else {"gamma": self.gamma}
        if isinstance(self.mu, Mapping):
            values |= {"mu-patterns": list(self.mu), "mu-values": [float(value) for value in self.mu.values()]}
        else:
            values["mu"] = float(self.mu)
        values |= _personal(self.personal)
        return _records(values, self.params, linear=self.linear, anchor=self.anchor, start=self.start)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> Instruction:
        """Read the message; the arrays must be like those of the model."""
        values = _values(records)

        def given(key: str) -> Named | None:
            return _arrays(records, key, like) if key in records.array_records else None

        mu: Mu
        if "mu-patterns" in values:
            mu = dict(zip(values["mu-patterns"], values["mu-values"], strict=True))
        else:
            mu = _number(values, "mu")
        return cls(
            _whole(values, "device"),
            _arrays(records, _ARRAYS, like),
            given(_LINEAR),
            _whole(values, "round"),
            mu,
            _whole(values, "budget"),
            _number(values, "seconds"),
            given(_ANCHOR),
            given(_START),
            PersonalVersion.from_values(values),
            _number(values, "gamma") if "gamma" in values else None,
        )


@dataclass(frozen=True)
class WorkReport:
    """What a device has done in a round."""

    params: Named  # w_k
    steps: int
    seconds: float  # from the arrival of the message until the work was done
    loss: float  # F_k(w^t)
    stopped_by_time: bool
    speed: float | None = None  # samples per second
    gamma: float | None = None
    lost_personal: bool = False  # it did not have the personal parameters it was to use, and began anew

    def to_records(self) -> RecordDict:
        """Return the message."""
        values: dict[str, Any] = {
            "steps": self.steps,
            "seconds": self.seconds,
            "loss": self.loss,
            "stopped-by-time": self.stopped_by_time,
            "lost-personal": self.lost_personal,
        }
        values |= {name: value for name, value in (("speed", self.speed), ("gamma", self.gamma)) if value is not None}
        return _records(values, self.params)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> WorkReport:
        """Read the message; the arrays must be like those of the model."""
        values = _values(records)
        return cls(
            _arrays(records, _ARRAYS, like),
            _whole(values, "steps"),
            _number(values, "seconds"),
            _number(values, "loss"),
            bool(values.get("stopped-by-time", False)),
            _number(values, "speed") if "speed" in values else None,
            _number(values, "gamma") if "gamma" in values else None,
            bool(values.get("lost-personal", False)),
        )


@dataclass(frozen=True)
class ModelQuery:
    """A model that a device is asked to measure."""

    params: Named
    personal: PersonalVersion | None = None

    def to_records(self) -> RecordDict:
        """Return the message."""
        return _records(_personal(self.personal), self.params)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> ModelQuery:
        """Read the message; the arrays must be like those of the model."""
        return cls(_arrays(records, _ARRAYS, like), PersonalVersion.from_values(_values(records)))


@dataclass(frozen=True)
class Gradient:
    """A device's gradient at a model."""

    params: Named  # grad F_k, under the names of the parameters

    def to_records(self) -> RecordDict:
        """Return the message."""
        return _records({}, self.params)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> Gradient:
        """Read the message; the arrays must be like those of the model."""
        return cls(_arrays(records, _ARRAYS, like))


@dataclass(frozen=True)
class Evaluation:
    """What a device measures of a model, over its own samples."""

    train_samples: int
    train_loss: float  # mean
    train_accuracy: float | None
    test_samples: int
    test_loss: float | None
    test_accuracy: float | None
    gradient: Named | None = None  # grad F_k
    metrics: Mapping[str, float] = field(default_factory=dict)  # of `measure.metrics`; NaN: no value

    def to_records(self) -> RecordDict:
        """Return the message."""
        names = ("train_samples", "train_loss", "train_accuracy", "test_samples", "test_loss", "test_accuracy")
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        values |= {f"{_METRIC}{name}": value for name, value in self.metrics.items()}
        return _records(values, self.gradient)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> Evaluation:
        """Read the message; the arrays must be like those of the model."""
        values = _values(records)

        def known(name: str) -> float | None:
            return _number(values, name) if name in values else None

        return cls(
            _whole(values, "train_samples"),
            _number(values, "train_loss"),
            known("train_accuracy"),
            _whole(values, "test_samples"),
            known("test_loss"),
            known("test_accuracy"),
            _arrays(records, _ARRAYS, like) if _ARRAYS in records.array_records else None,
            {key.removeprefix(_METRIC): _number(values, key) for key in values if key.startswith(_METRIC)},
        )


@dataclass(frozen=True)
class Introduction:
    """Who a node says it is."""

    device: int
    train_samples: int
    test_samples: int

    def to_records(self) -> RecordDict:
        """Return the message."""
        return _records({"device": self.device, "train_samples": self.train_samples, "test_samples": self.test_samples})

    @classmethod
    def from_records(cls, records: RecordDict) -> Introduction:
        """Read the message."""
        values = _values(records)
        names = ("device", "train_samples", "test_samples")
        device, train, test = (_whole(values, name) for name in names)
        if not 1 <= train <= _MOST_SAMPLES:
            raise WrongMessageError(f"`train_samples` must be an integer from 1 to {_MOST_SAMPLES}; got {train}")
        if test > _MOST_SAMPLES:
            raise WrongMessageError(f"`test_samples` must be an integer from 0 to {_MOST_SAMPLES}; got {test}")
        return cls(device, train, test)


def _personal(version: PersonalVersion | None) -> dict[str, Any]:
    return {} if version is None else {_PERSONAL: [version.run, version.used, version.written]}


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


def _records(values: Mapping[str, Any], arrays: Named | None = None, **more: Named | None) -> RecordDict:
    records: dict[str, Any] = {_VALUES: ConfigRecord(dict(values))}
    for key, named in {_ARRAYS: arrays, **more}.items():
        if named is not None:
            records[key] = ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in named.items()})
    return RecordDict(records)


def _arrays(records: RecordDict, key: str, like: Named) -> Named:
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


def _values(records: RecordDict) -> Mapping[str, Any]:
    if _VALUES not in records.config_records:
        raise WrongMessageError("a message must hold values; it has none")
    return records.config_records[_VALUES]


def _whole(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise WrongMessageError(f"`{name}` must be an integer >= 0; got {short(value)}")
    return value


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongMessageError(f"`{name}` must be a number; got {short(value)}")
    return float(value)
