"""The contents of one file about devices: speeds, networks, availability; a file may have only one of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedprox.core.errors import DataError, short

__all__ = ["Measured", "Span", "joined_spans", "positive"]

Span = tuple[float, float]


@dataclass(frozen=True)
class Measured:
    """The contents of a file, by its names of the devices.

    Attributes:
      samples_per_second: measured speeds.
      score: speeds that are known only relative to each other; the median stands for `--samples-per-second`.
      network: download and upload in bytes per second.
      spans: when each device is available, in seconds from the start of its trace.
      period: after how many seconds each trace repeats.
      kind: what sort of device it is.
      notes: sentences on what was done with the file's contents.
    """

    samples_per_second: Mapping[str, float] = field(default_factory=dict)
    score: Mapping[str, float] = field(default_factory=dict)
    network: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    latency: Mapping[str, float] = field(default_factory=dict)
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    period: Mapping[str, float] = field(default_factory=dict)
    kind: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The devices in the file, in its order."""
        every = (self.samples_per_second, self.score, self.network, self.spans)
        return list(dict.fromkeys(name for each in every for name in each))


def positive(where: str, name: str, value: object) -> float:
    """Return a number > 0; refuse anything else.

    >>> positive("fleet.csv, line 3", "samples_per_second", -2.0)
    Traceback (most recent call last):
    ...
    fedprox.core.errors.DataError: fleet.csv, line 3: `samples_per_second` must be a number > 0; got -2.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-30 <= value <= 1e30:
        raise DataError(f"{where}: `{name}` must be a number > 0; got {short(value)}")
    return float(value)


def joined_spans(where: str, spans: list[Span], period: float) -> tuple[Span, ...]:
    """Return spans in their order, those that touch or overlap as one.

    >>> joined_spans("a", [(5.0, 7.0), (0.0, 2.0), (2.0, 3.0)], 10.0)
    ((0.0, 3.0), (5.0, 7.0))
    """
    found: list[Span] = []
    for begin, end in sorted(spans):
        if not 0 <= begin < end <= period:
            raise DataError(
                f"{where}: a span of availability must begin before it ends, within 0 and {period:g} seconds; got "
                f"{begin:g} to {end:g}"
            )
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)
