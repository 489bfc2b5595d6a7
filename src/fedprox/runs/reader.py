"""Runs read from their folders, while they are running or after they have ended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedprox.config import Config
from fedprox.core.errors import RunFolderError
from fedprox.core.files import read_tensors
from fedprox.core.trees import Tree
from fedprox.runs.columns import columns_needed
from fedprox.runs.folder import read_history, read_summary
from fedprox.runs.history import History
from fedprox.runs.identity import read_config
from fedprox.runs.replaced import Replaced
from fedprox.runs.summary_text import outcome_text

__all__ = ["MemoryRun", "SavedRun", "find_runs", "load_run", "nested"]


@dataclass(frozen=True, repr=False)
class SavedRun:
    """A run folder, read. The larger files are read when they are first needed.

    Attributes:
      path: the run folder.
      config: its resolved config.
      history: one row per measured round (`history.to_pandas()`, `history.to_polars()`).
      summary: the outcome, or None while the run has not ended.
      replaced: the parts that were given as objects from Python, in place of what the config names.
    """

    path: Path
    config: Config
    history: History
    summary: dict[str, Any] | None
    replaced: Replaced = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"SavedRun({self.path}: {outcome_text(self.history, self.summary)})"

    @cached_property
    def devices(self) -> History:
        """One row per round: which devices took part, and how."""
        return read_history(self.path, "devices")

    @cached_property
    def evaluation(self) -> History:
        """One row per device: samples, loss and accuracy of the final model; empty until the run has ended."""
        has_ended = (self.path / "evaluation.jsonl").exists()
        return read_history(self.path, "evaluation") if has_ended else History()

    @cached_property
    def params(self) -> Tree | None:
        """The final parameters as nested dicts of arrays, or None while the run has not ended."""
        file = self.path / "model.safetensors"
        return nested(read_tensors(file)[0]) if file.exists() else None

    def _repr_html_(self) -> str:
        from fedprox.runs.notebook_view import run_html

        with columns_needed(self.path):
            return run_html(self.history, self.summary)

    @property
    def seed(self) -> int:
        """The seed of everything but the data."""
        return self.config.seed

    @property
    def last(self) -> dict[str, Any]:
        """The last measured round."""
        return self.history[-1]


class MemoryRun(SavedRun):
    """A run that was not written to a folder: what a report needs of it, without the evaluation of each device."""

    def __init__(
        self, path: Path, config: Config, history: History, summary: dict[str, Any] | None, devices: History
    ) -> None:
        super().__init__(path, config, history, summary, (summary or {}).get("replaced", {}))
        self.__dict__ |= {"devices": devices, "evaluation": History(), "params": None}


def load_run(path: str | Path) -> SavedRun:
    """Read a run folder.

    >>> import tempfile, fedprox
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = fedprox.train({"rounds": 2}, out=f"{folder}/run")
    ...     run = load_run(f"{folder}/run")
    ...     run.params["weight"].shape, len(run.history), run.summary["ended"]
    ((10, 60), 3, 'finished')
    """
    folder = Path(path)
    if not (folder / "config.toml").exists():
        if not folder.exists():
            raise RunFolderError(f"run folder {folder} does not exist")
        below = next(
            (file.parent for depth in ("*", "*/*") for file in sorted(folder.glob(f"{depth}/config.toml"))), None
        )
        hint = f"; it holds run folders, such as {below}" if below else ""
        raise RunFolderError(f"{folder} holds no config.toml, so it is not a run folder{hint}")
    config, replaced = read_config(folder)
    return SavedRun(folder, config, read_history(folder), read_summary(folder), replaced)


def find_runs(paths: Iterable[str | Path]) -> list[SavedRun]:
    """Read every run in `paths`: run folders, or folders that hold them at any depth (a comparison, a sweep)."""
    folders: dict[Path, None] = {}
    for path in map(Path, paths):
        below = [path] if (path / "config.toml").exists() else [file.parent for file in path.rglob("config.toml")]
        found = [folder for folder in below if (folder / "metrics.jsonl").exists()]
        if not path.exists():
            raise RunFolderError(f"run folder {path} does not exist")
        if not found:
            raise RunFolderError(
                f"{path} is not a run folder and holds none; the folder of a new run can be read once its first model "
                f"is measured"
            )
        folders |= dict.fromkeys(sorted(found, key=_in_number_order))
    return [load_run(folder) for folder in folders]


def nested(named: dict[str, Any]) -> dict[str, Any]:
    """Return nested dicts for names that are paths joined by dots.

    >>> nested({"hidden.weight": 1, "hidden.bias": 2, "scale": 3})
    {'hidden': {'weight': 1, 'bias': 2}, 'scale': 3}
    """
    result: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split(".")
        target = result
        for part in path:
            target = target.setdefault(part, {})
        target[last] = value
    return result


def _in_number_order(folder: Path) -> list[tuple[int, str]]:
    """Sort seed-2 before seed-10."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+)(\d*)", str(folder))]
