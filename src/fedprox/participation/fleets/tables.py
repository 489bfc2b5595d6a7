"""Plain tables, CSV or Parquet: a row for each device, or a row for each span in which a device is available.

*Devices*: `samples_per_second` or `ms_per_sample`; `download_bytes_per_second` or `download_kbit_per_second`, and the
same for `upload`; `latency_seconds`, `class`, and `device`, its name (the row's number where it is missing).

*Spans*: `device`, `begin_seconds`, `end_seconds`, and `period_seconds`, after which the trace repeats (a day where it
is missing). A device without a row is not in the table; one that is never available has a row without begin and end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprox.core.errors import DataError, nearest
from fedprox.core.extras import needs_extra
from fedprox.core.reading import reading
from fedprox.data.csv import read_columns
from fedprox.participation.fleets.measured import Measured, Span, joined_spans, positive

__all__ = ["read_table_file"]

_SPEED = ("samples_per_second", "ms_per_sample")
_RATE = {"bytes_per_second": 1.0, "kbit_per_second": 125.0}
_DEVICE_COLUMNS = (
    "device",
    "class",
    "latency_seconds",
    *_SPEED,
    *(f"{way}_{unit}" for way in ("download", "upload") for unit in _RATE),
)
_SPAN_COLUMNS = ("device", "begin_seconds", "end_seconds", "period_seconds")
_DAY = 86400.0

Columns = Mapping[str, Sequence[Any]]


def read_table_file(path: Path) -> Measured:
    """Read a table of devices, or of spans."""
    columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    is_spans = "begin_seconds" in columns
    known = _SPAN_COLUMNS if is_spans else _DEVICE_COLUMNS
    for name in columns:
        if name not in known:
            raise DataError(
                f"{path}: a column must be one of {', '.join(known)}; got {name!r}{nearest(name, list(known))}"
            )
    return _spans(path, columns) if is_spans else _devices(path, columns)


def _csv(path: Path) -> Columns:
    with reading(path, "a readable CSV file"):
        try:
            return {name: column.tolist() for name, column in read_columns(path).items()}
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def _parquet(path: Path) -> Columns:
    with needs_extra("arrow", "a Parquet file"):
        import pyarrow.parquet
    with reading(path, "a readable Parquet file"):
        table = pyarrow.parquet.read_table(path)
        table.validate(full=True)
        columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _devices(path: Path, columns: Columns) -> Measured:
    speeds = [name for name in _SPEED if name in columns]
    rates = {way: [unit for unit in _RATE if f"{way}_{unit}" in columns] for way in ("download", "upload")}
    if len(speeds) > 1 or any(len(units) > 1 for units in rates.values()):
        raise DataError(f"{path} must have each speed in one unit; it has the columns {', '.join(columns)}")
    if bool(rates["download"]) != bool(rates["upload"]):
        raise DataError(f"{path} must have both download and upload, or neither; it has {', '.join(columns)}")
    if not speeds and not rates["download"]:
        raise DataError(f"{path} must have speeds, networks or spans; it has the columns {', '.join(columns)}")
    speed: dict[str, float] = {}
    network: dict[str, tuple[float, float]] = {}
    latency: dict[str, float] = {}
    kind: dict[str, str] = {}
    for number in range(len(next(iter(columns.values())))):
        where = f"{path}, row {number + 1}"
        name = _name(columns, number, where)
        if name in speed or name in network:
            raise DataError(f"{where}: `device` must have a different name in every row; {name!r} appears twice")
        if speeds:
            value = positive(where, speeds[0], _cell(columns, speeds[0], number))
            speed[name] = 1000 / value if speeds[0] == "ms_per_sample" else value
        if rates["download"]:
            both = [(f"{way}_{rates[way][0]}", _RATE[rates[way][0]]) for way in ("download", "upload")]
            down, up = (positive(where, key, _cell(columns, key, number)) * unit for key, unit in both)
            network[name] = (down, up)
        if "latency_seconds" in columns:
            wait = _cell(columns, "latency_seconds", number)
            latency[name] = 0.0 if wait == 0 else positive(where, "latency_seconds", wait)
        if "class" in columns:
            kind[name] = str(_cell(columns, "class", number))
    return Measured(samples_per_second=speed, network=network, latency=latency, kind=kind)


def _spans(path: Path, columns: Columns) -> Measured:
    for name in ("device", "end_seconds"):
        if name not in columns:
            raise DataError(f"{path} must have the columns device, begin_seconds and end_seconds; {name} is missing")
    given: dict[str, list[Span]] = {}
    period: dict[str, float] = {}
    for number in range(len(columns["device"])):
        where = f"{path}, row {number + 1}"
        name = _name(columns, number, where)
        own = period.setdefault(name, _DAY)
        if "period_seconds" in columns:
            own = positive(where, "period_seconds", _cell(columns, "period_seconds", number))
            if given.get(name) is not None and own != period[name]:
                raise DataError(f"{where}: `period_seconds` of {name!r} must be one number; got {own:g}")
            period[name] = own
        begin, end = (_cell(columns, key, number) for key in ("begin_seconds", "end_seconds"))
        spans = given.setdefault(name, [])
        if begin is None and end is None:
            continue
        if begin is None or end is None or isinstance(begin, str) or isinstance(end, str):
            raise DataError(f"{where}: `begin_seconds` and `end_seconds` must both be numbers; got {begin} and {end}")
        spans.append((float(begin), float(end)))
    spans_of = {name: joined_spans(f"{path}, {name}", spans, period[name]) for name, spans in given.items()}
    return Measured(spans=spans_of, period=period)


def _cell(columns: Columns, name: str, row: int) -> Any:
    value = columns[name][row]
    return None if isinstance(value, float) and math.isnan(value) else value


def _name(columns: Columns, row: int, where: str) -> str:
    if "device" not in columns:
        return str(row)
    value = _cell(columns, "device", row)
    if value is None or value == "":
        raise DataError(f"{where}: `device` must be a name; got nothing")
    return str(value)
