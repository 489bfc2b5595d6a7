"""The small records of finished runs: settings, measured rounds and summary, a few kilobytes each.

They fit into a repository, and stand for the run where its folder is gone: long experiments continue on another
machine without running again what is done.
"""

from __future__ import annotations

from pathlib import Path

from fedprox.config import Config
from fedprox.core.files import write_atomically
from fedprox.runs.folder import read_summary

__all__ = ["is_record_of", "keep_record"]

_FILES = ("config.toml", "metrics.jsonl", "summary.json")  # the summary last: it says that the record is whole
_NOT_THE_RUN = ("engine", "checkpoint")  # what does not change a result


def keep_record(run: Path, folder: Path, *, devices: bool = False) -> None:
    """Copy a record, or that of a finished run, into `folder`; with `devices` also who took part in each round."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*(("devices.jsonl",) if devices else ()), *_FILES):
        write_atomically(folder / name, (run / name).read_bytes())


def is_record_of(folder: Path, config: Config) -> bool:
    """Return whether a folder holds the record of a whole run of a config."""
    summary = read_summary(folder)
    if summary is None or summary["rounds"] < config.rounds:
        return False
    found, wanted = Config.from_toml(folder / "config.toml").to_dict(), config.to_dict()
    for section in _NOT_THE_RUN:
        found.pop(section, None)
        wanted.pop(section, None)
    return found == wanted
