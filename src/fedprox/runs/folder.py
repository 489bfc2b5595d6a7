"""A run folder: everything that a run writes, in open formats.

    config.toml        the complete resolved config, enough to run it again
    metrics.jsonl      one object per measured round, appended as it happens
    devices.jsonl      one object per round: which devices took part, and how
    evaluation.jsonl   at the end: one object per device
    model.safetensors  the final parameters
    checkpoint/        what resume needs
    summary.json       the result

Only one process writes a folder at a time: it holds a lock that the system releases when the process ends, however
it ends. After a crash the folder is reset to its last checkpoint, and the rounds since then are repeated.

A run is resumed in two steps. `RunFolder(..., resume=True)` verifies the checkpoint and writes nothing; `begin` changes
the folder, once the caller knows that the checkpoint fits. The results of a finished run are then set aside, in
`checkpoint/before`, until new ones are complete.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from fedprox.config import Config
from fedprox.core.errors import ConfigError, RunFolderError, short
from fedprox.core.files import json_line, write_atomically, write_tensors
from fedprox.core.locks import is_locked, try_lock
from fedprox.core.reading import read_json
from fedprox.core.trees import Tree
from fedprox.runs.checkpoint import (
    RECORDS,
    Checkpoint,
    Tensors,
    devices_folder,
    find_checkpoint,
    keep_previous,
    referred_files,
    write_checkpoint,
)
from fedprox.runs.columns import column_problem
from fedprox.runs.device_store import DeviceStore, Secure, unlink_unused
from fedprox.runs.history import History
from fedprox.runs.identity import check_continues, read_config, run_identity, write_config
from fedprox.runs.record_file import Beginning, RecordFile, read_beginning, read_records
from fedprox.runs.replaced import Replaced

__all__ = [
    "RunFolder",
    "check_empty",
    "check_out",
    "check_usable",
    "is_measured",
    "is_running",
    "read_complete",
    "read_history",
    "read_summary",
]

_BEGINNINGS = {"checkpoint", ".config.toml.new"}  # left by a process that died before it wrote a config
_MEASURES = ("train_loss", "train_accuracy", "test_accuracy")
_RESULTS = ("model.safetensors", "evaluation.jsonl", "summary.json")  # in the order in which they are written


class RunFolder:
    """A folder that is being written by this process; only its owner may enter a `private` one."""

    def __init__(
        self,
        path: str | Path,
        config: Config,
        *,
        resume: bool = False,
        replaced: Replaced | None = None,
        private: bool = False,
    ) -> None:
        self.path, self._private = Path(path), private
        self.checkpoint: Checkpoint | None = None
        self._config, self._replaced = config, replaced or {}
        self._run = run_identity(config, self._replaced)
        self._beginnings = {name: Beginning() for name in RECORDS}
        self._trimmed = False  # whether a measurement is left out that the checkpoint was saved with
        self._last_is_whole = False  # whether the last checkpoint on disk is worth keeping as the one before
        self._records: dict[str, RecordFile] = {}
        self._store: DeviceStore | None = None
        self._lock: IO[bytes] | None = None
        try:
            with _said_plainly(self.path):
                self._open(resume)
        except BaseException:
            self.close()
            raise

    def _open(self, resume: bool) -> None:
        check_usable(self.path, self._config, resume=resume, replaced=self._replaced)
        if not (self.path / "checkpoint").exists():
            _check_nothing_lost(self.path)  # before there is a lock to keep in it
        (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
        if self._private:
            self.path.chmod(0o700)
        self._lock = _lock(self.path)
        # again: another process may have written before the lock
        check_usable(self.path, self._config, resume=resume, replaced=self._replaced)
        found = find_checkpoint(self.path, self._run) if resume else None
        if found is None:
            _check_nothing_lost(self.path)
            self.begin()
            return
        self.checkpoint, self._beginnings, self._last_is_whole = found.checkpoint, found.records, found.is_last
        self._leave_out_last_measurement()

    def _leave_out_last_measurement(self) -> None:
        """Leave out the measurement of a round that was the last and is none that a longer run measures."""
        file, length = self.path / "metrics.jsonl", self._beginnings["metrics"].bytes
        if length == 0:
            return
        content = file.read_bytes()[:length]
        begins = content.rfind(b"\n", 0, -1) + 1
        if not is_measured(json.loads(content[begins:])["round"], self._config):
            self._beginnings["metrics"] = read_beginning(file, begins) or Beginning()
            self._trimmed = True

    def begin(self) -> None:
        """Bring the folder to its checkpoint, or to the start of the run; from now on it has not ended."""
        with _said_plainly(self.path):
            for left_over in (*self.path.glob(".*.new"), *self.path.glob("checkpoint/.*.new")):
                left_over.unlink()
            if self._trimmed and self.checkpoint is not None:  # first: the longer file still begins like the shorter
                marks = {name: beginning.mark() for name, beginning in self._beginnings.items()}
                write_checkpoint(self.path, self.checkpoint, self._run, marks)
                self._last_is_whole = True
            write_atomically(self.path / "config.toml", write_config(self._config, self._replaced).encode())
            for name, beginning in self._beginnings.items():
                self._records[name] = RecordFile(self.path / f"{name}.jsonl", beginning)
            self._set_results_aside()

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append to metrics.jsonl."""
        with _said_plainly(self.path):
            self._records["metrics"].append(record)

    def devices(self, record: Mapping[str, Any]) -> None:
        """Append to devices.jsonl."""
        with _said_plainly(self.path):
            self._records["devices"].append(record)

    def open_devices(self, like: Tree, secure: Secure) -> DeviceStore:
        """Return what devices remember at the checkpoint, or nothing at the start; `save` writes what changes in it."""
        segments = () if self.checkpoint is None else self.checkpoint.devices
        self._store = DeviceStore(devices_folder(self.path), like, secure, segments)
        return self._store

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint, and keep the one before it."""
        with _said_plainly(self.path):
            if self._store is not None:
                checkpoint = replace(checkpoint, devices=tuple(self._store.save()))
            # the records reach the disk first: a checkpoint must never be ahead of them
            marks = {name: file.mark() for name, file in self._records.items()}
            if self._last_is_whole and self.checkpoint is not None and self.checkpoint.round < checkpoint.round:
                keep_previous(self.path)
            write_checkpoint(self.path, checkpoint, self._run, marks)
            if devices_folder(self.path).is_dir():
                unlink_unused(devices_folder(self.path), referred_files(self.path))
        self.checkpoint, self._last_is_whole = checkpoint, True

    def finish(self, params: Tensors, evaluation: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
        """Write the final parameters, the evaluation and, last of all, the summary.

        Where the summary has `labels`, what the classes are called, the parameters are saved with them.
        """
        with _said_plainly(self.path):
            values = {"labels": summary["labels"]} if "labels" in summary else {}
            write_tensors(self.path / "model.safetensors", params, values)
            lines = "".join(json_line(record) for record in evaluation)
            write_atomically(self.path / "evaluation.jsonl", lines.encode())
            text = json.dumps(json.loads(json_line(summary)), indent=2) + "\n"
            write_atomically(self.path / "summary.json", text.encode())
            shutil.rmtree(self.path / "checkpoint" / "before", ignore_errors=True)

    def close(self) -> None:
        """Close the files and release the lock."""
        for file in (*self._records.values(), self._store, self._lock):
            if file is not None:
                file.close()

    def _set_results_aside(self) -> None:
        """Keep the results of a run that had ended until there are new ones; without a summary they are half."""
        had_ended = (self.path / "summary.json").exists()
        before = self.path / "checkpoint" / "before"
        for name in _RESULTS:
            if had_ended:
                before.mkdir(exist_ok=True)
                if (self.path / name).exists():
                    (self.path / name).replace(before / name)
            else:
                (self.path / name).unlink(missing_ok=True)


def is_measured(round: int, config: Config) -> bool:
    """Return whether a round is measured: rounds 0, every, 2 every, ... and the last."""
    return round % config.measure.every == 0 or round == config.rounds


def read_history(path: str | Path, name: str = "metrics") -> History:
    """Read metrics, devices or evaluation of a run folder; a half-written last line is left out."""
    file = Path(path) / f"{name}.jsonl"
    if not file.exists():
        raise RunFolderError(f"{path} holds no {name}.jsonl, so it is not a run folder")
    history, last = History(), -1
    for number, (record, _) in enumerate(read_records(file), start=1):
        problem = column_problem(name, record)
        if problem is None and name != "evaluation":
            if record["round"] <= last:
                problem = f"`round` must rise from row to row; got {record['round']} after {last}"
            last = record["round"]
        if problem is not None:
            raise RunFolderError(f"{file}, line {number}: {problem}")
        history.append(record)
    return history


def read_complete(path: str | Path) -> History:
    """Read the measured rounds of a run that has ended, which must go as far as its summary says."""
    history, summary = read_history(path), read_summary(path) or {}
    wanted, last = summary.get("result", {}).get("round"), history[-1]["round"] if history else None
    if last is None or last != wanted:
        raise RunFolderError(f"{path}/metrics.jsonl must go to round {wanted}, as summary.json says; got {last}")
    for row in history:
        if missing := [name for name in _MEASURES if name not in row]:
            raise RunFolderError(f"{path}/metrics.jsonl, round {row['round']}: `{missing[0]}` is missing")
    if "seconds" not in summary:
        raise RunFolderError(f"{path}/summary.json is not the summary of a run: `seconds` is missing")
    return history


def read_summary(path: str | Path) -> dict[str, Any] | None:
    """Read the summary of a run folder, or None where the run has not ended."""
    try:
        summary: dict[str, Any] = read_json((Path(path) / "summary.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}/summary.json cannot be read: {error}") from None
    problem = column_problem("summary", summary) if isinstance(summary, dict) else "it must be a JSON object"
    if problem is not None:
        raise RunFolderError(f"{path}/summary.json is not the summary of a run: {problem}")
    return summary


def is_running(path: str | Path) -> bool:
    """Return whether a process is writing the run folder."""
    return is_locked(Path(path) / "checkpoint" / "lock")


class _said_plainly:  # noqa: N801 - reads as a sentence: with _said_plainly(folder)
    """Turn an error of the operating system about a folder into one sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise RunFolderError(f"run folder {self._path} cannot be written: {reason}") from None


def check_usable(out: str | Path | None, config: Config, *, resume: bool, replaced: Replaced | None = None) -> None:
    """Refuse a folder that holds something else, or a run that is not to be continued with this config and parts."""
    if out is None:
        return
    path = Path(out)
    if (path / "config.toml").exists():
        if not resume:
            raise RunFolderError(
                f"{path} already holds a run; choose another folder, or continue it with --resume (in Python "
                "resume=True)"
            )
        check_continues(path, config, replaced)
    elif path.is_dir() and {file.name for file in path.iterdir()} - _BEGINNINGS:
        raise RunFolderError(f"{path} is not empty and holds no run; choose another folder")


def check_out(out: object, *, resume: bool = False, needed: bool = False) -> None:
    """Refuse what is not the path of a folder; None writes nothing, and is refused where a folder is needed."""
    if out is None and resume:
        raise ConfigError("`resume` must be used with `out`, the run folder; got resume=True without it")
    if not isinstance(out, (str, os.PathLike)) and (needed or out is not None):
        raise ConfigError(f"`out` must be the path of a folder; got {short(out)}")


def check_empty(path: Path) -> None:
    """Refuse a path for new run folders that is a file, lies below one, or holds something; it need not exist."""
    with _said_plainly(path):
        try:
            filled = any(path.iterdir())
        except FileNotFoundError:
            return
    if filled:
        raise RunFolderError(
            f"{path} is not empty; choose another folder, or continue the comparison in it with --resume (in Python "
            "resume=True)"
        )


def _lock(path: Path) -> IO[bytes]:
    file = (path / "checkpoint" / "lock").open("ab")
    for _ in range(5):  # another process may be calling `is_running`
        if try_lock(file):
            return file
        time.sleep(0.02)
    file.close()
    raise RunFolderError(f"{path} is being written by another process")


def _check_nothing_lost(path: Path) -> None:
    """Refuse to start a run again from its beginning where it had a checkpoint that is gone."""
    if not (path / "config.toml").exists():
        return
    if (path / "summary.json").exists() or (path / "checkpoint" / "before" / "summary.json").exists():
        raise RunFolderError(f"{path} cannot be continued: its checkpoint is missing, and the run had ended")
    if (path / "devices.jsonl").exists():
        every = read_config(path)[0].checkpoint.every
        for record, _ in read_records(path / "devices.jsonl"):
            if isinstance(record.get("round"), int) and record["round"] > every:
                raise RunFolderError(
                    f"{path} cannot be continued: its checkpoint is missing, and its records go to round "
                    f"{record['round']}"
                )
