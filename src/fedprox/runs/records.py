"""The small records of finished runs: settings, measured rounds and summary, a few kilobytes each.

They fit into a repository, and replace the run if its folder is gone: long experiments continue on another machine
without repeating finished runs. A record carries the digests of its files; a damaged one is refused.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fedprox.config import Config
from fedprox.config.toml import dump_toml, read_toml
from fedprox.core.errors import RunFolderError
from fedprox.core.files import write_atomically
from fedprox.core.reading import reading
from fedprox.runs.folder import read_complete, read_summary
from fedprox.runs.stopping import has_finished

__all__ = ["check_record", "is_record_of", "keep_record", "use_record"]

_FILES = ("config.toml", "metrics.jsonl", "summary.json")  # the summary last: it marks the record as complete
_DIGESTS = "digests.json"
_NOT_THE_RUN = ("engine", "checkpoint")  # what does not change a result


def keep_record(run: Path, folder: Path, *, devices: bool = False) -> None:
    """Keep the record of a finished run in `folder`; with `devices` also which devices took part in each round.

    A record without the devices restores no run, so it names the folder of the data without its place on this machine.
    """
    contents = _read(run, devices)
    if not devices:
        settings = read_toml(run / "config.toml")
        if path := settings.get("data", {}).get("path"):
            settings["data"]["path"] = Path(path).name
            contents["config.toml"] = dump_toml(settings).encode()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    _write(folder, {_DIGESTS: (json.dumps(digests, indent=1) + "\n").encode(), **contents})


def use_record(folder: Path, run: Path) -> None:
    """Restore a run folder from a record that has the devices of each round."""
    check_record(folder)
    _write(run, _read(folder, devices=True))


def check_record(folder: Path) -> None:
    """Refuse a record whose files have changed; one without digests must be readable."""
    if (folder / _DIGESTS).exists():
        with reading(folder / _DIGESTS, "the list of digests of a record", error=RunFolderError):
            digests = dict(json.loads((folder / _DIGESTS).read_bytes()))
        for name in {*digests, *_FILES}:
            with reading(folder / name, "part of a record", error=RunFolderError):
                found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            if found != digests.get(name):
                raise RunFolderError(
                    f"{folder} is a damaged record: {name} is not the file that was kept; delete the record to repeat "
                    "its run"
                )
    read_complete(folder)


def is_record_of(folder: Path, config: Config) -> bool:
    """Return whether a folder holds the record of a complete run of a config."""
    summary = read_summary(folder)
    if summary is None or not has_finished(summary, config.rounds):
        return False
    check_record(folder)
    found, wanted = Config.from_toml(folder / "config.toml").to_dict(), config.to_dict()
    for section in _NOT_THE_RUN:
        found.pop(section, None)
        wanted.pop(section, None)
    return found == wanted


def _read(folder: Path, devices: bool) -> dict[str, bytes]:
    contents = {}
    for name in (*(("devices.jsonl",) if devices else ()), *_FILES):
        with reading(folder / name, "part of a run", error=RunFolderError):
            contents[name] = (folder / name).read_bytes()
    return contents


def _write(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
