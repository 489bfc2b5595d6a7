"""The small records of finished runs: settings, measured rounds and summary, a few kilobytes each.

They fit into a repository, and stand for the run where its folder is gone: long experiments continue on another
machine without running again what is done.
"""

from __future__ import annotations

from pathlib import Path

from fedprox.core.files import write_atomically

__all__ = ["keep_record"]

_FILES = ("config.toml", "metrics.jsonl", "summary.json")  # the summary last: it says that the record is whole


def keep_record(run: Path, records: Path) -> None:
    """Copy the record of a finished run into its own folder below `records`."""
    folder = records / run.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        write_atomically(folder / name, (run / name).read_bytes())
