"""Files of FLASH: states, networks and scores of phones.

FLASH is Yang et al., "Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data",
WWW 2021 (github.com/PKU-Chengxu/FLASH).

*States*: {guid: {"guid", "model", "messages"}}, where `messages` has lines "2020-01-29 03:12:40<tab>state" with the
states battery_charged_on and _off, wifi, 2g to 5g, unknown, screen_on, _off, _lock and _unlock, and a battery level
such as "57.0%". A phone is available while it is locked, charging and on Wi-Fi. All traces begin at the midnight before
the first message of the file, so that the phones share their nights, and repeat after the last day of the file.

*Networks*: {guid: {"down_u", "down_sigma", "up_u", "up_sigma"}}, means and deviations in kbit/s.

*Scores*: the AI-Benchmark list, [{"Model", "CPU_F_AI_Score", ...}]: relative speeds.

*Half-hours*: an npz file with `available` (half-hours, phones): 1 available, 0 unavailable, 255 unknown, which counts
as unavailable. The first row is taken as midnight; of more than a day, whole days are read, so that hours stay hours
when they repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError, short
from fedprox.participation.fleets.measured import Measured, Span, joined_spans, positive

__all__ = ["read_half_hours", "read_networks", "read_scores", "read_states"]

_DAY, _HALF_HOUR = 86400.0, 1800.0
_BYTES = 125.0  # of a kbit
_OF_A_DAY = 48
_UNKNOWN = 255
_STATES: Mapping[str, tuple[str, bool]] = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
_NEITHER = ("screen_on", "screen_off", "battery_low", "battery_okay", "phone_on", "phone_off")


def read_networks(file: str, rows: Mapping[str, Mapping[str, Any]]) -> Measured:
    """Read measured networks.

    >>> read_networks("n.json", {"a": {"down_u": 80.0, "down_sigma": 1.0, "up_u": 8.0, "up_sigma": 1.0}}).network
    {'a': (10000.0, 1000.0)}
    """
    network = {}
    for name, row in rows.items():
        down, up = (positive(f"{file}, {name}", key, row.get(key)) for key in ("down_u", "up_u"))
        network[name] = (down * _BYTES, up * _BYTES)
    return Measured(network=network, notes=(f"{file}: mean networks; how they vary over time is left out",))


def read_scores(file: str, rows: Sequence[Mapping[str, Any]]) -> Measured:
    """Read the AI-Benchmark scores of phone models, on the CPU with floating-point numbers."""
    score = {}
    for number, row in enumerate(rows, start=1):
        try:
            value = float(row.get("CPU_F_AI_Score", "nan"))
        except (TypeError, ValueError):
            value = float("nan")
        score[str(row.get("Model", number))] = positive(f"{file}, entry {number}", "CPU_F_AI_Score", value)
    return Measured(score=score)


def read_half_hours(file: str, available: NDArray[Any]) -> Measured:
    """Read which phones were available in each half-hour."""
    if available.ndim != 2 or not available.size or not np.isin(available, (0, 1, _UNKNOWN)).all():
        raise DataError(
            f"{file}: `available` must be (half-hours, devices) of 1, 0 and {_UNKNOWN} for unknown; got an array of "
            f"shape {available.shape}"
        )
    whole = len(available) // _OF_A_DAY * _OF_A_DAY or len(available)  # so that hours stay hours when it repeats
    available, period = available[:whole], whole * _HALF_HOUR
    spans = {}
    for device, column in enumerate((available == 1).T):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], column, [0]]))) * _HALF_HOUR
        spans[str(device)] = tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    unknown = float((available == _UNKNOWN).mean())
    note = f"{file}: {unknown:.1%} of the half-hours are unknown and count as away"
    return Measured(spans=spans, period=dict.fromkeys(spans, period), notes=(note,) if unknown else ())


def read_states(file: str, rows: Mapping[str, Mapping[str, Any]]) -> Measured:
    """Read the messages of phones."""
    events = {name: _events(f"{file}, {name}", row) for name, row in rows.items()}
    times = [time for each in events.values() for time, _ in each]
    if not times:
        raise DataError(f"{file} must have messages with a time and a state; it has none")
    start = min(times).replace(hour=0, minute=0, second=0, microsecond=0)
    days = (max(times) - start) // timedelta(days=1) + 1
    spans = {name: _there(f"{file}, {name}", each, start, days * _DAY) for name, each in events.items()}
    return Measured(spans=spans, period=dict.fromkeys(spans, days * _DAY))


def _events(where: str, row: Mapping[str, Any]) -> list[tuple[datetime, str]]:
    found = []
    for number, line in enumerate(str(row["messages"]).split("\n"), start=1):
        if not line.strip():
            continue
        when, _, state = line.strip().partition("\t")
        try:
            time = datetime.strptime(when.strip(), "%Y-%m-%d %H:%M:%S")
        except ValueError:
            raise DataError(
                f"{where}, message {number}: must be a time such as 2020-01-29 03:12:40, a tab and a state; got "
                f"{short(line)}"
            ) from None
        word = state.strip().lower()
        if word not in _STATES and word not in _NEITHER and not word.endswith("%"):
            raise DataError(f"{where}, message {number}: the state must be one that FLASH defines; got {short(state)}")
        found.append((time, word))
    return found


def _there(where: str, events: list[tuple[datetime, str]], start: datetime, period: float) -> tuple[Span, ...]:
    """Return the spans in which a phone was locked, charging and on Wi-Fi; none before its first message."""
    now = {"charging": False, "wifi": False, "locked": False}
    spans: list[Span] = []
    since: float | None = None
    for time, state in events:
        if state not in _STATES:
            continue
        key, value = _STATES[state]
        now[key] = value
        at = (time - start).total_seconds()
        if all(now.values()) and since is None:
            since = at
        elif not all(now.values()) and since is not None:
            if at > since:
                spans.append((since, at))
            since = None
    return joined_spans(where, spans, period)
