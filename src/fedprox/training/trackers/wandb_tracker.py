"""Weights & Biases in offline mode: files in the run folder's `wandb`; `wandb sync` uploads them if you wish."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from fedprox.config import Config
from fedprox.training.result import Progress
from fedprox.training.trackers import numbers

__all__ = ["WandbTracker", "tracker"]


def tracker(folder: Path, config: Config) -> WandbTracker:
    """Return the tracker for the run in `folder`."""
    return WandbTracker(folder, config)


class WandbTracker:
    """Writes the config and each number of a round; a resumed run keeps its id, so that its parts join."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder = folder.resolve()
        self._config = config
        self._run: Any = None

    def __call__(self, progress: Progress) -> None:
        """Write the metrics of a round that was measured."""
        if self._run is None:
            self._run = wandb.init(
                project="fedprox",
                name=self._folder.name,
                id=hashlib.sha256(str(self._folder).encode()).hexdigest()[:16],
                dir=str(self._folder),
                config=self._config.to_dict(),
                mode="offline",
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
            )
        if progress.metrics is not None:
            self._run.log(numbers(progress.metrics), step=progress.round)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write the outcome and finish the files."""
        if self._run is not None:
            self._run.summary["ended"] = summary["ended"]
            self._run.finish(exit_code=int(summary["ended"] == "failed"))
