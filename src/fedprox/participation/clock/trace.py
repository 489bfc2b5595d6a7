"""Traces: the properties of every device, read from a file of JSON lines, one line per device.

    {"samples_per_second": 300, "download_bytes_per_second": 2e6, "upload_bytes_per_second": 5e5,
     "latency_seconds": 0.1, "available": [[0, 21600], [79200, 86400]], "period_seconds": 86400, "class": "phone"}

Line k + 1 is device k. The first three fields are required. `available` are the spans of seconds since the start in
which the device can be asked; they repeat every `period_seconds`, which defaults to a day; without `available` it
always can. A device whose `available` is [] is never asked. `class` is a name for the report.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError, nearest, short
from fedprox.core.reading import reading
from fedprox.participation.clock.timing import Devices

__all__ = ["Trace", "read_trace"]

_RATES = ("samples_per_second", "download_bytes_per_second", "upload_bytes_per_second")
_FIELDS = (*_RATES, "latency_seconds", "available", "period_seconds", "class")
_DAY = 86400.0
_SMALLEST, _LARGEST = 1e-30, 1e30  # so that sums and quotients of them are finite

Spans = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Trace:
    """The devices of a trace, in the order of its lines."""

    rates: NDArray[np.float64]  # (devices, 3): samples, bytes down and bytes up per second
    latency: NDArray[np.float64]  # (devices,)
    kind: tuple[str, ...]
    spans: tuple[Spans | None, ...]  # None: always available
    period: NDArray[np.float64]  # (devices,)

    def at(self, devices: NDArray[np.int64], round: int) -> Devices:
        """Return what the clock needs to know about devices; a trace is the same in every round."""
        samples, download, upload = self.rates[devices].T
        kind = tuple(self.kind[device] for device in devices.tolist())
        return Devices(kind, samples, download, upload, self.latency[devices])

    def seconds_left(self, devices: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Return how long each device stays available: 0 if it is not, infinity if it always is."""
        self._say_repeats(now)
        return np.array([_left(self.spans[device], float(self.period[device]), now) for device in devices.tolist()])

    def stays(self, device: int, now: float) -> float:
        """Return for how long one device stays available."""
        self._say_repeats(now)
        return _left(self.spans[device], float(self.period[device]), now)

    def _say_repeats(self, now: float) -> None:
        if now >= self.repeats_after:
            warnings.warn(
                f"the run has lasted longer than its trace, {self.repeats_after:.0f} simulated seconds; "
                "availability repeats from the beginning of the trace",
                stacklevel=3,
            )

    @cached_property
    def repeats_after(self) -> float:
        """The simulated time at which availability begins to repeat; infinity where it is a pattern of one day."""
        periods = [period for spans, period in zip(self.spans, self.period.tolist(), strict=True) if spans is not None]
        return min((period for period in periods if period != _DAY), default=math.inf)


def read_trace(path: str | Path, devices: int | None, field: str = "systems.trace") -> Trace:
    """Read a trace with one line for each of `devices` devices; None: with any number of lines."""
    missing = f"`{field}` must be a file that exists; got {str(path)!r}"
    with reading(path, "a readable trace", name=f"trace {path}", missing=missing):
        trace = _read(path, devices)
    _warn_of_absent(path, trace)
    return trace


def _warn_of_absent(path: str | Path, trace: Trace) -> None:
    absent = [number for number, spans in enumerate(trace.spans, start=1) if spans == ()]
    if len(absent) == len(trace.spans):
        raise DataError(f"trace {path}: at least one device must be available at some time; all `available` are []")
    if absent:
        shown = ", ".join(map(str, absent[:5])) + (", …" if len(absent) > 5 else "")
        warnings.warn(
            f"trace {path}: {len(absent)} of {len(trace.spans)} devices are never available and are never asked "
            f"(lines {shown})",
            stacklevel=4,
        )


def _read(path: str | Path, devices: int | None) -> Trace:
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"trace {path} is not UTF-8 text (byte {error.start})") from None
    if lines[-1] == "":
        del lines[-1]
    if not lines:
        raise DataError(f"trace {path} must have a line for each device; it is empty")
    if devices is not None and len(lines) != devices:
        raise DataError(f"trace {path} must have one line for each of the {devices} devices; got {len(lines)} lines")
    rows = [_row(f"trace {path}, line {number}", line) for number, line in enumerate(lines, start=1)]
    return Trace(
        rates=np.array([[row[name] for name in _RATES] for row in rows], float),
        latency=np.array([row["latency_seconds"] for row in rows], float),
        kind=tuple(row["class"] for row in rows),
        spans=tuple(row["available"] for row in rows),
        period=np.array([row["period_seconds"] for row in rows], float),
    )


def _row(where: str, line: str) -> dict[str, Any]:
    """Return the checked fields of a line."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, Mapping):
        raise DataError(f"{where}: must be a JSON object; got {line[:60]!r}")
    for name in given:
        if name not in _FIELDS:
            raise DataError(f"{where}: unknown field `{name}`" + nearest(name, _FIELDS))
    for name in _RATES:
        if name not in given:
            raise DataError(f"{where}: `{name}` must be given, a number > 0")
    row = {"latency_seconds": 0.0, "available": None, "period_seconds": _DAY, "class": "device", **given}
    for name in (*_RATES, "period_seconds"):
        if not (_is_number(row[name]) and row[name] >= _SMALLEST):
            raise DataError(f"{where}: `{name}` must be a number > 0; got {short(row[name])}")
    if not (_is_number(row["latency_seconds"]) and row["latency_seconds"] >= 0):
        raise DataError(f"{where}: `latency_seconds` must be a number >= 0; got {short(row['latency_seconds'])}")
    if not isinstance(row["class"], str):
        raise DataError(f"{where}: `class` must be text; got {short(row['class'])}")
    if "available" in given:
        row["available"] = _spans(where, given["available"], row["period_seconds"])
    return row


def _spans(where: str, value: Any, period: float) -> Spans:
    """Check spans: [[begin, end], ...], rising, within the period."""
    before = 0.0
    for span in value if isinstance(value, list) else [value]:
        is_pair = isinstance(span, list) and len(span) == 2 and all(map(_is_number, span))
        if not is_pair or not before <= span[0] < span[1] <= period:
            raise DataError(
                f"{where}: `available` must be spans [begin, end] that rise from 0 to `period_seconds`, {period:g}; "
                f"got {short(span)}"
            )
        before = span[1]
    return tuple((float(begin), float(end)) for begin, end in value)


def _is_number(value: Any) -> bool:
    """Return whether a value is a usable number: finite, and not beyond 1e30."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _left(spans: Spans | None, period: float, now: float) -> float:
    if spans is None or spans == ((0.0, period),):
        return math.inf
    at = now % period
    for begin, end in spans:
        if begin <= at < end:
            wraps = end == period and spans[0][0] == 0  # the period repeats without a gap
            return end - at + (spans[0][1] if wraps else 0.0)
    return 0.0
