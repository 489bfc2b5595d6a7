"""Checkpoints: the state that resume needs, with digests that tie it to the run and its records.

A checkpoint is one safetensors file with a format version and digests: of itself, of the run (its config without the
keys that resume may change, and its parts from Python), and of `metrics.jsonl` and `devices.jsonl` up to its round.
Two are kept, `state` and the one before it, `previous`, which is used if the last one is damaged. What
devices remember is in files beside it (`device_store`), which it refers to with their digests; both checkpoints may
refer to the same ones.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedprox.core.errors import RunFolderError
from fedprox.core.files import read_tensors, read_values, write_tensors
from fedprox.runs.device_segments import Segment, verify_segment
from fedprox.runs.record_file import Beginning, read_beginning

__all__ = [
    "RECORDS",
    "Checkpoint",
    "by_owner",
    "devices_folder",
    "find_checkpoint",
    "keep_previous",
    "referred_files",
    "write_checkpoint",
]

Tensors = dict[str, np.ndarray[Any, Any]]
RECORDS = ("metrics", "devices")
_FORMAT = 3


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round: named arrays, and plain values for the rest."""

    round: int
    tensors: Tensors
    state: dict[str, Any]
    devices: tuple[Segment, ...] = ()  # the files of what devices remember


@dataclass(frozen=True)
class Verified:
    """An intact checkpoint, and the beginnings of the records that belong to it."""

    checkpoint: Checkpoint
    records: dict[str, Beginning]
    is_last: bool  # False where it is the one before the last


def write_checkpoint(
    folder: Path, checkpoint: Checkpoint, run: Mapping[str, Any], marks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the last checkpoint of a run folder; `run` says which run it is of, `marks` what its records hold."""
    values = {"format": _FORMAT, "round": checkpoint.round, "run": run, "records": marks, "state": checkpoint.state}
    values["devices"] = [asdict(segment) for segment in checkpoint.devices]
    write_tensors(_last(folder), checkpoint.tensors, values)


def by_owner(tensors: Mapping[str, Any]) -> dict[str, Tensors]:
    """Return the arrays of a state by what they belong to: params, server, version.0, version.1, ...

    >>> by_owner({"params.bias": 1, "version.3.bias": 2})
    {'params': {'bias': 1}, 'version.3': {'bias': 2}}
    """
    groups: dict[str, Tensors] = {}
    for name, array in tensors.items():
        owner, _, rest = name.partition(".")
        if owner == "version":
            number, _, rest = rest.partition(".")
            owner = f"{owner}.{number}"
        groups.setdefault(owner, {})[rest] = array
    return groups


def keep_previous(folder: Path) -> None:
    """Keep the last checkpoint as the one before it; at every moment there is one."""
    temporary = _previous(folder).with_name(".previous.safetensors.new")
    temporary.unlink(missing_ok=True)
    try:
        os.link(_last(folder), temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(_last(folder), temporary)
    temporary.replace(_previous(folder))
    temporary.unlink(missing_ok=True)  # renaming does nothing where both are already links to one file


def devices_folder(folder: Path) -> Path:
    """Return where a run folder has the files of what devices remember."""
    return folder / "checkpoint" / "devices"


def referred_files(folder: Path) -> set[str]:
    """Return the names of the files that the two checkpoints of a run folder refer to."""
    found: set[str] = set()
    for file in (_last(folder), _previous(folder)):
        with contextlib.suppress(RunFolderError):  # a damaged one is of no use
            found |= {segment["file"] for segment in read_values(file).get("devices", ())}
    return found


def find_checkpoint(folder: Path, run: Mapping[str, Any]) -> Verified | None:
    """Return the last checkpoint of a run folder, or with a warning the one before it; None where there is none.

    Nothing is written. Raises `RunFolderError` if no checkpoint is intact and belongs to the run and its records.
    """
    files = [file for file in (_last(folder), _previous(folder)) if file.exists()]
    problems = [] if _last(folder) in files or not files else [f"{_last(folder)} is missing"]
    for file in files:
        try:
            found = _verified(folder, file, run)
        except RunFolderError as error:
            problems.append(str(error))
            continue
        if problems:
            warnings.warn(
                f"{problems[0]}; continuing from round {found.checkpoint.round}, the one before", stacklevel=2
            )
        return found
    if problems:
        raise RunFolderError(f"{folder} cannot be continued: {'; '.join(dict.fromkeys(problems))}")
    return None


def _last(folder: Path) -> Path:
    return folder / "checkpoint" / "state.safetensors"


def _previous(folder: Path) -> Path:
    return folder / "checkpoint" / "previous.safetensors"


def _verified(folder: Path, file: Path, run: Mapping[str, Any]) -> Verified:
    tensors, values = read_tensors(file)
    if values is None or values.get("format") != _FORMAT:
        found = "an older one" if values is None else values.get("format")
        raise RunFolderError(f"{file} must be a checkpoint of format {_FORMAT}; got {found}")
    try:
        round, state, marks, own = values["round"], dict(values["state"]), values["records"], values["run"]
        devices = tuple(Segment(**each) for each in values["devices"])
    except (KeyError, TypeError):
        raise RunFolderError(f"{file} holds no state of a run") from None
    if own != run:
        raise RunFolderError(f"{file} belongs to another run")
    records = {}
    for name in RECORDS:
        beginning = read_beginning(folder / f"{name}.jsonl", marks[name]["bytes"])
        if beginning is None or beginning.mark() != marks[name]:
            raise RunFolderError(f"{folder}/{name}.jsonl is not the one that {file} was saved with, at round {round}")
        records[name] = beginning
    for segment in devices:
        verify_segment(devices_folder(folder), segment)
    return Verified(Checkpoint(round, tensors, state, devices), records, file == _last(folder))
