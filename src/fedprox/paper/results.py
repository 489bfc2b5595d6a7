"""The finished runs of the experiments, by curve."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fedprox.paper.experiments import Curve
from fedprox.paper.protocol import DATASETS
from fedprox.paper.runs import Setting, build_jobs, finished_folder
from fedprox.runs.history import History
from fedprox.runs.reader import SavedRun, load_run

__all__ = ["Histories", "Results"]


class Histories(Protocol):
    """What the claims are judged on: the history of each seed behind a curve, none where it was not run."""

    def histories(self, curve: Curve) -> list[History]:
        """Return one history per seed."""
        ...


class Results:
    """Reads runs on request, each once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._by_folder: dict[Path, SavedRun] = {}
        self._by_curve: dict[Curve, list[SavedRun]] = {}

    def runs(self, curve: Curve) -> list[SavedRun]:
        """Return the finished runs behind a curve, one per seed, in the order of seeds."""
        if curve not in self._by_curve:
            folders = [finished_folder(job, self.setting) for job in build_jobs([curve], self.setting)]
            found = [self._read(folder) for folder in folders if folder is not None]
            self._by_curve[curve] = sorted(found, key=lambda run: run.seed)
        return self._by_curve[curve]

    def _read(self, folder: Path) -> SavedRun:
        if folder not in self._by_folder:
            self._by_folder[folder] = load_run(folder)
        return self._by_folder[folder]

    def histories(self, curve: Curve) -> list[History]:
        """Return one history per seed, and none while a seed is missing: the seeds of two curves must be the same."""
        runs = self.runs(curve)
        return [run.history for run in runs] if len(runs) == len(self.setting.seeds_for(curve.dataset)) else []

    @cached_property
    def reductions(self) -> Mapping[str, str]:
        """What the scale changes, in words, by data set."""
        sentences = {name: self.setting.scale.of(name).sentence(each.title) for name, each in DATASETS.items()}
        return {name: sentence for name, sentence in sentences.items() if sentence}
