"""Make one fleet of several files: read each by what it holds, join them, and write a line for every device.

Files that name the same devices are joined by name. Files about other devices (FLASH has the networks of some phones
and the states of others) are joined at random: every line of the fleet gets one of them, drawn by (seed, file, line).
A file with only some of the devices is refused, unless all are to be joined at random.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedprox.core.errors import ConfigError, DataError
from fedprox.core.randomness import Purpose, words_of_devices
from fedprox.core.reading import check_archive, reading
from fedprox.participation.fleets import fedscale, flash
from fedprox.participation.fleets.measured import Measured
from fedprox.participation.fleets.tables import read_table_file

__all__ = ["ImportedFleet", "import_fleet", "read_measured"]

_DAY = 86400.0


@dataclass(frozen=True)
class ImportedFleet:
    """A fleet that was read: its lines, and what was done, in sentences."""

    lines: list[dict[str, Any]]
    notes: list[str]

    def text(self) -> str:
        """Return the lines of the fleet file."""
        return "".join(json.dumps(line) + "\n" for line in self.lines)


def import_fleet(
    paths: Sequence[str | Path],
    *,
    devices: int = 0,
    samples_per_second: float = 100.0,
    seed: int = 0,
    drop_absent: bool = False,
    at_random: bool = False,
) -> ImportedFleet:
    """Read files about devices and return a fleet.

    Args:
      paths: files of FLASH or FedScale, CSV or Parquet tables; together they have speeds, networks and availability.
      devices: how many lines to make; 0: as many as the first file with the most devices has.
      samples_per_second: what the median device trains, where files have only relative speeds, or what every device
        trains where they have none.
      seed: of the draws that join files about different devices.
      drop_absent: leave out devices that are never available.
      at_random: join files at random, even if they name the same devices.
    """
    if not paths:
        raise ConfigError("`FILE` must be given: at least one file with speeds, networks or availability")
    read = [read_measured(Path(path)) for path in paths]
    largest = max(range(len(read)), key=lambda place: len(read[place].names))
    names = read[largest].names
    notes = [note for each in read for note in each.notes]
    if drop_absent:
        absent = {name for each in read for name, spans in each.spans.items() if not spans}
        read = [_without(each, absent) for each in read]
        names = [name for name in names if name not in absent]
        notes += [f"{len(absent)} devices are never available and are left out"] if absent else []
    if not names:
        raise DataError(f"{paths[0]}: at least one device must be available at some time")
    count = devices or len(names)
    sources = []
    for place, (each, path) in enumerate(zip(read, paths, strict=True)):
        by_name = place == largest or (not at_random and _has_all(each, names, path))
        sources.append(_Source(each, place, names if by_name else None, count, seed))
    lines = [_line(sources, row, samples_per_second) for row in range(count)]
    notes += _said(read, lines, samples_per_second)
    return ImportedFleet(lines, notes)


def read_measured(path: Path) -> Measured:
    """Read one file, according to its content."""
    if path.suffix in (".csv", ".parquet", ".gz"):
        return read_table_file(path)
    with reading(path, "a readable fleet file"):
        with path.open("rb") as file:
            start = file.read(2)
        if start[:1] == b"\x80":
            raise DataError(
                f"{path} must be JSON, CSV, Parquet or npz; it is a pickle, which can run any code: convert it to "
                "JSON if you trust it (docs/clock.md says how)"
            )
        if start == b"PK":
            with path.open("rb") as raw:
                with zipfile.ZipFile(raw) as archive:
                    check_archive(archive, str(path))
                raw.seek(0)
                with np.load(raw, allow_pickle=False) as arrays:
                    if "available" not in arrays.files:
                        raise DataError(f"{path} must hold the array `available`; it has {', '.join(arrays.files)}")
                    return flash.read_half_hours(str(path), arrays["available"])
        return _read_json(str(path), json.loads(path.read_text(encoding="utf-8")))


def _read_json(file: str, content: Any) -> Measured:
    rows = list(content.values()) if isinstance(content, Mapping) else content if isinstance(content, list) else []
    keys = set(rows[0]) if rows and isinstance(rows[0], Mapping) else set()
    if not keys or not all(isinstance(row, Mapping) for row in rows):
        raise DataError(f"{file} must be JSON with an object for each device; it has another form")
    if isinstance(content, list):
        if "CPU_F_AI_Score" in keys:
            return flash.read_scores(file, content)
    elif "messages" in keys:
        return flash.read_states(file, content)
    elif "down_u" in keys:
        return flash.read_networks(file, content)
    elif "computation" in keys:
        return fedscale.read_capacity(file, content)
    elif "active" in keys:
        return fedscale.read_behaviour(file, content)
    raise DataError(
        f"{file} must have FLASH's `messages`, `down_u` or `CPU_F_AI_Score`, or FedScale's `computation` or `active`; "
        f"its devices have {', '.join(sorted(map(str, keys))[:8])}"
    )


class _Source:
    """A file's devices, and which of them each line of the fleet gets."""

    def __init__(self, measured: Measured, place: int, names: list[str] | None, count: int, seed: int) -> None:
        self.measured = measured
        if names is not None:
            self._given = [names[row % len(names)] for row in range(count)]
        else:
            own, lines = measured.names, np.arange(count)
            drawn, begins = words_of_devices(np.ones_like(lines), seed, Purpose.FLEET_JOIN, place, lines)
            self._given = [own[which] for which in (drawn[begins] % np.uint64(len(own))).tolist()]
        median = float(np.median(list(measured.score.values()))) if measured.score else 1.0
        self._relative = {name: score / median for name, score in measured.score.items()}

    def fill(self, row: int, line: dict[str, Any], samples_per_second: float) -> None:
        """Put the file's values for one of its devices into a line."""
        name, own = self._given[row], self.measured
        if name in own.samples_per_second:
            line["samples_per_second"] = own.samples_per_second[name]
        elif name in self._relative:
            line["samples_per_second"] = samples_per_second * self._relative[name]
        if name in own.network:
            line["download_bytes_per_second"], line["upload_bytes_per_second"] = own.network[name]
        if name in own.latency:
            line["latency_seconds"] = own.latency[name]
        if name in own.spans:
            line["available"] = [list(span) for span in own.spans[name]]
            line["period_seconds"] = own.period.get(name, _DAY)
        if name in own.kind:
            line["class"] = own.kind[name]


def _has_all(measured: Measured, names: list[str], path: str | Path) -> bool:
    """Return whether a file names all devices; one that names only some has gaps."""
    own = set(measured.names)
    missing = [name for name in names if name not in own]
    if missing and len(missing) < len(names):
        raise DataError(
            f"{path} must have every device of the other files, or none of them; {len(missing)} of {len(names)} are "
            f"missing, such as {missing[0]!r} (--at-random joins files about different devices)"
        )
    return not missing


def _line(sources: Sequence[_Source], row: int, samples_per_second: float) -> dict[str, Any]:
    line: dict[str, Any] = {"samples_per_second": samples_per_second}
    for source in sources:
        source.fill(row, line, samples_per_second)
    for way in ("download", "upload"):
        if f"{way}_bytes_per_second" not in line:
            raise DataError(
                f"the files must give the network speeds of every device; device {row} has no {way}: add a table with "
                "download_kbit_per_second and upload_kbit_per_second"
            )
    return line


def _said(read: Sequence[Measured], lines: Sequence[Mapping[str, Any]], samples_per_second: float) -> list[str]:
    """Return what a user should know about the fleet, a sentence each."""
    notes = []
    if not any(each.samples_per_second or each.score for each in read):
        notes.append(f"no file has speeds: every device trains {samples_per_second:g} samples a second")
    elif not any(each.samples_per_second for each in read):
        notes.append(f"speeds are relative: the median device trains {samples_per_second:g} samples a second")
    spans = [line.get("available") for line in lines]
    if all(each is None for each in spans):
        notes.append("no file has availability: every device is always available")
        return notes
    absent = [row + 1 for row, each in enumerate(spans) if each == []]
    if absent:
        shown = ", ".join(map(str, absent[:5])) + (", …" if len(absent) > 5 else "")
        notes.append(
            f"{len(absent)} of {len(lines)} devices are never available (lines {shown}); they stay in the fleet and "
            "are never asked, unless --drop-absent leaves them out"
        )
    periods = {float(line["period_seconds"]) for line in lines if line.get("available") is not None}
    if periods:
        shortest, longest = min(periods) / _DAY, max(periods) / _DAY
        days = f"{shortest:.3g}" if shortest == longest else f"{shortest:.3g} to {longest:.3g}"
        notes.append(f"availability covers {days} days and then repeats")
    return notes


def _without(measured: Measured, absent: set[str]) -> Measured:
    fields = ("samples_per_second", "score", "network", "latency", "spans", "period", "kind")
    kept = {each: {k: v for k, v in getattr(measured, each).items() if k not in absent} for each in fields}
    return Measured(**kept, notes=measured.notes)
