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
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict

from fedprox.core.errors import short
from fedprox.deploy.message_records import (
    ARRAYS,
    Named,
    WrongMessageError,
    make_records,
    read_arrays,
    read_number,
    read_values,
    read_whole,
)
from fedprox.methods.device_view import Mu

__all__ = ["Evaluation", "Gradient", "Instruction", "Introduction", "ModelQuery", "PersonalVersion", "WorkReport"]

_LINEAR, _ANCHOR, _START = "linear", "anchor", "start"
_PERSONAL = "personal"
_VERSION = r"(?:[0-9]{1,9}-[0-9a-f]{16})?"
_METRIC = "metric."  # before the name of a metric
_MOST_SAMPLES = 2**31 - 1  # of a device, as of a population


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

    device: int  # the number of the device
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
        return make_records(values, self.params, linear=self.linear, anchor=self.anchor, start=self.start)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> Instruction:
        """Read the message; the arrays must be like those of the model."""
        values = read_values(records)

        def given(key: str) -> Named | None:
            return read_arrays(records, key, like) if key in records.array_records else None

        mu: Mu
        if "mu-patterns" in values:
            mu = dict(zip(values["mu-patterns"], values["mu-values"], strict=True))
        else:
            mu = read_number(values, "mu")
        return cls(
            read_whole(values, "device"),
            read_arrays(records, ARRAYS, like),
            given(_LINEAR),
            read_whole(values, "round"),
            mu,
            read_whole(values, "budget"),
            read_number(values, "seconds"),
            given(_ANCHOR),
            given(_START),
            PersonalVersion.from_values(values),
            read_number(values, "gamma") if "gamma" in values else None,
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
    lost_personal: bool = False  # the device had lost its personal parameters, and started from the initial ones

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
        return make_records(values, self.params)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> WorkReport:
        """Read the message; the arrays must be like those of the model."""
        values = read_values(records)
        return cls(
            read_arrays(records, ARRAYS, like),
            read_whole(values, "steps"),
            read_number(values, "seconds"),
            read_number(values, "loss"),
            bool(values.get("stopped-by-time", False)),
            read_number(values, "speed") if "speed" in values else None,
            read_number(values, "gamma") if "gamma" in values else None,
            bool(values.get("lost-personal", False)),
        )


@dataclass(frozen=True)
class ModelQuery:
    """A model that a device is asked to measure."""

    params: Named
    personal: PersonalVersion | None = None

    def to_records(self) -> RecordDict:
        """Return the message."""
        return make_records(_personal(self.personal), self.params)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> ModelQuery:
        """Read the message; the arrays must be like those of the model."""
        return cls(read_arrays(records, ARRAYS, like), PersonalVersion.from_values(read_values(records)))


@dataclass(frozen=True)
class Gradient:
    """A device's gradient at a model."""

    params: Named  # grad F_k, under the names of the parameters

    def to_records(self) -> RecordDict:
        """Return the message."""
        return make_records({}, self.params)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> Gradient:
        """Read the message; the arrays must be like those of the model."""
        return cls(read_arrays(records, ARRAYS, like))


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
        return make_records(values, self.gradient)

    @classmethod
    def from_records(cls, records: RecordDict, like: Named) -> Evaluation:
        """Read the message; the arrays must be like those of the model."""
        values = read_values(records)

        def known(name: str) -> float | None:
            return read_number(values, name) if name in values else None

        return cls(
            read_whole(values, "train_samples"),
            read_number(values, "train_loss"),
            known("train_accuracy"),
            read_whole(values, "test_samples"),
            known("test_loss"),
            known("test_accuracy"),
            read_arrays(records, ARRAYS, like) if ARRAYS in records.array_records else None,
            {key.removeprefix(_METRIC): read_number(values, key) for key in values if key.startswith(_METRIC)},
        )


@dataclass(frozen=True)
class Introduction:
    """How a node identifies itself."""

    device: int
    train_samples: int
    test_samples: int

    def to_records(self) -> RecordDict:
        """Return the message."""
        return make_records(
            {"device": self.device, "train_samples": self.train_samples, "test_samples": self.test_samples}
        )

    @classmethod
    def from_records(cls, records: RecordDict) -> Introduction:
        """Read the message."""
        values = read_values(records)
        names = ("device", "train_samples", "test_samples")
        device, train, test = (read_whole(values, name) for name in names)
        if not 1 <= train <= _MOST_SAMPLES:
            raise WrongMessageError(f"`train_samples` must be an integer from 1 to {_MOST_SAMPLES}; got {train}")
        if test > _MOST_SAMPLES:
            raise WrongMessageError(f"`test_samples` must be an integer from 0 to {_MOST_SAMPLES}; got {test}")
        return cls(device, train, test)


def _personal(version: PersonalVersion | None) -> dict[str, Any]:
    return {} if version is None else {_PERSONAL: [version.run, version.used, version.written]}
