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

import fcntl
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedprox.config import Config, read_toml
from fedprox.errors import RunFolderError
from fedprox.files import json_line, read_tensors, write_atomically, write_tensors
from fedprox.history import History

__all__ = ["Checkpoint", "RunFolder", "read_history", "read_summary"]

_MAY_CHANGE = ("rounds", "engine", "checkpoint")  # on resume

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
        self._files: dict[str, IO[str]] = {}
        with _said_plainly(self.path):
            existing = (self.path / "config.toml").exists()
            if existing and not resume:
                raise RunFolderError(
                    f"{self.path} already holds a run; choose another folder, or continue it with --resume"
                )
            if not existing and self.path.is_dir() and any(self.path.iterdir()):
                raise RunFolderError(f"{self.path} is not empty and holds no run; choose another folder")
            if existing:
                _check_same(self.path, config)
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path)
            write_atomically(self.path / "config.toml", config.to_toml().encode())
            if resume:
                self.checkpoint = _read_checkpoint(self.path)
            last = self.checkpoint.round if self.checkpoint else -1
            for name in ("metrics.jsonl", "devices.jsonl"):
                _cut_after(self.path / name, last)
                self._files[name] = (self.path / name).open("a", encoding="utf-8")

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
        for file in self._files.values():
            file.close()
        self._lock.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        with _said_plainly(self.path):
            self._files[name].write(json_line(record))
            self._files[name].flush()


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


class _said_plainly:  # noqa: N801 - reads as a sentence: with _said_plainly(folder)
    """Turn what the operating system says of a folder into one sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise RunFolderError(f"run folder {self._path} cannot be written: {error.strerror}") from None


def _lock(path: Path) -> IO[str]:
    file = (path / "checkpoint" / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunFolderError(f"{path} is being written by another process") from None
    return file


def _check_same(path: Path, config: Config) -> None:
    before, now = read_toml(path / "config.toml"), config.to_dict()
    changed = [key for key in _different(before, now) if key.split(".")[0] not in _MAY_CHANGE]
    if changed:
        raise RunFolderError(
            f"{path} was started with another config; resume must not change " + ", ".join(f"`{k}`" for k in changed)
        )
    if now["rounds"] < before.get("rounds", 0):
        raise RunFolderError(
            f"`rounds` must not be smaller than before when a run is resumed ({before['rounds']}); got {now['rounds']}"
        )


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
    state = json.loads(metadata["state"])
    return Checkpoint(state.pop("round"), tensors, state)


def _records(file: Path) -> Iterable[tuple[dict[str, Any], bytes]]:
    """Yield each whole record of a JSON lines file with its line."""
    for line in file.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line), line


def _cut_after(file: Path, last_round: int) -> None:
    """Leave only the whole records of rounds up to `last_round`."""
    if file.exists():
        kept = b"".join(line for record, line in _records(file) if record["round"] <= last_round)
        write_atomically(file, kept)
