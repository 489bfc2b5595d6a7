"""The measured speed of each device, as a trace that a simulated clock can follow.

    {"samples_per_second": 8.2, "latency_seconds": 3.1, "download_bytes_per_second": 1e12, ...}

One line per device, device 0 first. The speed is the median of what the device has measured. All the rest of the wait,
the start of programs and the travel of messages in both directions, is put into the latency of two messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

__all__ = ["trace_rows"]

_AT_ONCE = 1e12  # bytes per second: the time for transfers is in the latency


def trace_rows(rounds: Iterable[Mapping[str, Any]], devices: int) -> list[dict[str, float]] | None:
    """Return the lines of the trace, or None where a device has not been measured yet.

    >>> row = {"device": [0], "samples": [10], "epochs": [2.0], "budget": [4], "steps": [2], "speed": [5.0]}
    >>> trace_rows([{**row, "waited": [6.0]}], 1)[0]["latency_seconds"]  # 10 samples take 2 of the 6 seconds
    2.0
    """
    speeds: dict[int, list[float]] = {}
    waits: dict[int, list[float]] = {}
    for row in rounds:
        columns = (row[key] for key in ("device", "samples", "epochs", "budget", "steps", "speed", "waited"))
        for device, samples, epochs, budget, steps, speed, waited in zip(*columns, strict=True):
            if speed:
                work = samples * epochs * steps / budget / speed
                speeds.setdefault(device, []).append(speed)
                waits.setdefault(device, []).append(max(waited - work, 0.0))
    if len(speeds) < devices:
        return None
    return [
        {
            "samples_per_second": median(speeds[device]),
            "download_bytes_per_second": _AT_ONCE,
            "upload_bytes_per_second": _AT_ONCE,
            "latency_seconds": median(waits[device]) / 2,
        }
        for device in range(devices)
    ]
