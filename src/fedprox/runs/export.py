"""The records of a run as tables for other programs: CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprox.core.errors import ConfigError, RunFolderError
from fedprox.core.extras import needs_extra
from fedprox.core.files import write_atomically
from fedprox.runs.columns import device_lists
from fedprox.runs.history import History
from fedprox.runs.reader import load_run

__all__ = ["FORMATS", "device_rows", "export"]

FORMATS = ("csv", "parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(path: str | Path, out: str | Path | None = None, formats: Sequence[str] = ("csv",)) -> list[Path]:
    """Write metrics, devices and evaluation of a run folder as tables, by default as CSV to its folder `export`.

    Parquet needs the extra `frames`. `devices` has one line for each device of each round. Returns the files written.
    """
    if unknown := [form for form in formats if form not in FORMATS]:
        raise ConfigError(f"a format must be one of {', '.join(FORMATS)}; got {unknown[0]!r}")
    run = load_run(path)
    folder = Path(out) if out is not None else run.path / "export"
    tables = {"metrics": run.history, "devices": device_rows(run.devices), "evaluation": run.evaluation}
    content = {
        folder / f"{name}.{form}": _csv(rows) if form == "csv" else _parquet(rows)
        for name, rows in tables.items()
        if len(rows)
        for form in formats
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in content.items():
            write_atomically(file, data)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written: {error.strerror}") from None
    return list(content)


def device_rows(devices: History) -> History:
    """Return one row for each device of each round.

    >>> device_rows(History([{"round": 1, "solve_seconds": 0.5, "device": [3, 7], "steps": [10, 20]}]))[1]
    {'round': 1, 'device': 7, 'steps': 20}
    """
    rows = History()
    for record in devices:
        lists = device_lists(record)
        for values in zip(*lists.values(), strict=True):
            rows.append({"round": record["round"], **dict(zip(lists, values, strict=True))})
    return rows


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name, "")) for name in columns] for row in rows)
    return text.getvalue().encode()


def _harmless(cell: Any) -> Any:
    """Return a cell that no spreadsheet executes: text that begins like a formula gets an apostrophe in front.

    >>> _harmless("=1+1"), _harmless(-1.5), _harmless("phone")
    ("'=1+1", -1.5, 'phone')
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _parquet(rows: History) -> bytes:
    with needs_extra("frames", "a Parquet export"):
        import polars  # noqa: F401 - what `to_polars` needs, for a sentence that names the export
    frame = rows.to_polars()
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
