"""A run folder: everything that a run leaves behind, readable by anything.

    config.toml        the whole resolved config, enough to run it again
    metrics.jsonl      one object per measured round, appended as it happens
    devices.jsonl      one object per round: who took part, and how
    evaluation.jsonl   at the end: one object per device
    model.safetensors  the final parameters
    checkpoint/        what resume needs
    summary.json       the result

Only one process writes a folder at a time: it holds a lock that the system releases when the process ends, however
it ends. After a crash the folder is brought back to its last checkpoint, and the rounds since then are run again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedprox.core.locks import is_locked, try_lock
from fedprox.config import Config
from fedprox.core.errors import RunFolderError
from fedprox.core.files import json_line, read_tensors, write_atomically, write_tensors
from fedprox.runs.history import History

__all__ = [
    "Checkpoint",
    "RunFolder",
    "check_continues",
    "check_empty",
    "check_usable",
    "is_measured",
    "is_running",
    "read_history",
    "read_summary",
]

_MAY_CHANGE = ("rounds", "engine", "checkpoint", "deploy")  # on resume
_MUST_STAY = "deploy.devices"  # who can be drawn, and what privacy costs
_BEGINNINGS = {"checkpoint", ".config.toml.new"}  # what a process leaves that dies before it has written a config

Tensors = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round: named arrays, and plain values for the rest."""

    round: int
    tensors: Tensors
    state: dict[str, Any]


class RunFolder:
    """A folder that is being written by this process."""

    def __init__(self, path: str | Path, config: Config, *, resume: bool = False) -> None:
        self.path = Path(path)
        self.checkpoint: Checkpoint | None = None
        self._files: dict[str, IO[bytes]] = {}
        self._lock: IO[bytes] | None = None
        try:
            with _said_plainly(self.path):
                self._open(config, resume)
        except BaseException:
            self.close()
            raise

    def _open(self, config: Config, resume: bool) -> None:
        check_usable(self.path, config, resume=resume)
        (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        check_usable(self.path, config, resume=resume)  # again: another process may have come and gone before the lock
        for left_over in (*self.path.glob(".*.new"), *self.path.glob("checkpoint/.*.new")):
            left_over.unlink()
        write_atomically(self.path / "config.toml", config.to_toml().encode())
        if resume:
            self.checkpoint = _read_checkpoint(self.path)
        last = self.checkpoint.round if self.checkpoint else -1
        _keep(self.path / "metrics.jsonl", lambda t: t <= last and is_measured(t, config))
        _keep(self.path / "devices.jsonl", lambda t: t <= last)
        if self.checkpoint is not None:
            _check_complete(self.path, self.checkpoint.round)
        for name in ("metrics.jsonl", "devices.jsonl"):
            self._files[name] = (self.path / name).open("ab", buffering=0)
        for result in ("summary.json", "evaluation.jsonl", "model.safetensors"):
            (self.path / result).unlink(missing_ok=True)  # a run that goes on has not ended

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append to metrics.jsonl."""
        self._append("metrics.jsonl", record)

    def devices(self, record: Mapping[str, Any]) -> None:
        """Append to devices.jsonl."""
        self._append("devices.jsonl", record)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint."""
        state = json.dumps({"round": checkpoint.round, **checkpoint.state})
        with _said_plainly(self.path):
            for file in self._files.values():
                os.fsync(file.fileno())  # a checkpoint must never be ahead of the records
            write_tensors(self.path / "checkpoint" / "state.safetensors", checkpoint.tensors, {"state": state})

    def finish(self, params: Tensors, evaluation: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
        """Write the final parameters, the evaluation and, last of all, the summary."""
        with _said_plainly(self.path):
            write_tensors(self.path / "model.safetensors", params)
            lines = "".join(json_line(record) for record in evaluation)
            write_atomically(self.path / "evaluation.jsonl", lines.encode())
            text = json.dumps(json.loads(json_line(summary)), indent=2) + "\n"
            write_atomically(self.path / "summary.json", text.encode())

    def close(self) -> None:
        """Close the files and give up the lock."""
        for file in (*self._files.values(), self._lock):
            if file is not None:
                file.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        line = json_line(record).encode()
        with _said_plainly(self.path):
            while line:
                line = line[self._files[name].write(line) :]  # a disk that is nearly full takes a part


def is_measured(round: int, config: Config) -> bool:
    """Return whether a round is measured: rounds 0, every, 2 every, ... and the last."""
    return round % config.measure.every == 0 or round == config.rounds


def read_history(path: str | Path, name: str = "metrics") -> History:
    """Read metrics, devices or evaluation of a run folder; a half-written last line is left out."""
    file = Path(path) / f"{name}.jsonl"
    if not file.exists():
        raise RunFolderError(f"{path} holds no {name}.jsonl, so it is not a run folder")
    return History(record for record, _ in _records(file))


def read_summary(path: str | Path) -> dict[str, Any] | None:
    """Read the summary of a run folder, or None where the run has not ended."""
    try:
        summary: dict[str, Any] = json.loads((Path(path) / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}/summary.json cannot be read: {error}") from None
    return summary


def is_running(path: str | Path) -> bool:
    """Return whether a process is writing the run folder."""
    return is_locked(Path(path) / "checkpoint" / "lock")


def check_continues(path: Path, config: Config) -> None:
    """Refuse a config that cannot continue the run in `path`; a folder without a run is fine.

    A setting that the folder's config does not have, being older than the setting, had its default.
    """
    if not (path / "config.toml").exists():
        return
    before, now = Config.from_toml(path / "config.toml").to_dict(), config.to_dict()
    changed = [key for key in _different(before, now) if key.split(".")[0] not in _MAY_CHANGE or key == _MUST_STAY]
    if changed:
        raise RunFolderError(
            f"{path} was started with another config; resume must not change " + ", ".join(f"`{k}`" for k in changed)
        )
    if now["rounds"] < before["rounds"]:
        raise RunFolderError(
            f"`rounds` must not be smaller than before when a run is resumed ({before['rounds']}); got {now['rounds']}"
        )


class _said_plainly:  # noqa: N801 - reads as a sentence: with _said_plainly(folder)
    """Turn what the operating system says of a folder into one sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise RunFolderError(f"run folder {self._path} cannot be written: {reason}") from None


def check_usable(path: Path, config: Config, *, resume: bool) -> None:
    """Refuse a folder that holds something else, or a run that is not to be continued with this config."""
    if (path / "config.toml").exists():
        if not resume:
            raise RunFolderError(f"{path} already holds a run; choose another folder, or continue it with --resume")
        check_continues(path, config)
    elif path.is_dir() and {file.name for file in path.iterdir()} - _BEGINNINGS:
        raise RunFolderError(f"{path} is not empty and holds no run; choose another folder")


def check_empty(path: Path) -> None:
    """Refuse a path for new run folders that is a file, lies below one, or holds something; it need not exist."""
    with _said_plainly(path):
        try:
            filled = any(path.iterdir())
        except FileNotFoundError:
            return
    if filled:
        raise RunFolderError(f"{path} is not empty; choose another folder for the comparison")


def _lock(path: Path) -> IO[bytes]:
    file = (path / "checkpoint" / "lock").open("ab")
    for _ in range(5):  # someone may be asking `is_running` just now
        if try_lock(file):
            return file
        time.sleep(0.02)
    file.close()
    raise RunFolderError(f"{path} is being written by another process")


def _different(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys += _different(old, new, f"{prefix}{key}.")
        elif old != new:
            keys.append(prefix + key)
    return keys


def _read_checkpoint(path: Path) -> Checkpoint | None:
    file = path / "checkpoint" / "state.safetensors"
    if not file.exists():
        return None
    tensors, metadata = read_tensors(file)
    try:
        state = json.loads(metadata["state"])
        return Checkpoint(int(state.pop("round")), tensors, state)
    except (KeyError, ValueError):
        raise RunFolderError(f"{file} holds no state of a run, so it cannot be continued") from None


def _records(file: Path) -> Iterable[tuple[dict[str, Any], bytes]]:
    """Yield each whole record of a JSON lines file with its line."""
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), start=1):
        if line.endswith(b"\n"):
            try:
                yield json.loads(line), line
            except ValueError:
                raise RunFolderError(f"{file} must hold one JSON object per line; line {number} is none") from None


def _keep(file: Path, wanted: Callable[[int], bool]) -> None:
    """Leave only the whole records of rounds that are wanted."""
    if file.exists():
        write_atomically(file, b"".join(line for record, line in _records(file) if wanted(record["round"])))


def _check_complete(path: Path, last_round: int) -> None:
    """Refuse to continue from a checkpoint whose rounds are not all on record."""
    recorded = {record["round"] for record, _ in _records(path / "devices.jsonl")}
    if missing := [round for round in range(1, last_round + 1) if round not in recorded]:
        raise RunFolderError(
            f"{path}/devices.jsonl must hold every round up to its checkpoint, {last_round}; {missing[0]} is missing"
        )
