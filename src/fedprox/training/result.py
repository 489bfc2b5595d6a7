"""What a callback receives during a run, and what a run returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprox.config import Config
from fedprox.core.errors import RunFolderError
from fedprox.core.trees import Tree
from fedprox.runs.history import History
from fedprox.runs.reader import MemoryRun, SavedRun, load_run
from fedprox.runs.summary_text import outcome_text

if TYPE_CHECKING:
    from fedprox.report.plot import Picture

__all__ = ["Callback", "Progress", "Result"]


@dataclass(frozen=True)
class Progress:
    """What a callback receives after every round, and once for the initial model (round 0)."""

    round: int
    rounds: int
    metrics: Mapping[str, Any] | None  # None where the round was not measured
    devices: Mapping[str, Any] | None  # None for round 0
    params: Tree


Callback = Callable[[Progress], bool | None]
"""Called after every round; returning True ends the run there."""


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run. In a notebook it displays its outcome and its curves.

    Attributes:
      history: one row per measured round (`history.to_pandas()`, `history.to_polars()`).
      devices: one row per round: which devices took part, and how.
      params: the final parameters.
      summary: the outcome in a few values.
      config: the run's config.
      path: the run folder, or None where nothing was written.
      personal: with `[personal]` or a method of personal models, the personal model of each device that has taken part.
    """

    history: History
    devices: History
    params: Tree
    summary: dict[str, Any]
    config: Config | None = None
    path: Path | None = None
    personal: Mapping[int, Tree] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Result({outcome_text(self.history, self.summary)})"

    def plot(self, path: str | Path | None = None) -> Picture:
        """Return training loss and test accuracy over the rounds as a picture, and write it to `path` if given."""
        from fedprox.report.plot import run_picture  # Matplotlib takes long to import

        return run_picture(self.history, path)

    def report(self, path: str | Path = "report.html", title: str = "") -> Path:
        """Write the run as one HTML page to `path` and return the path."""
        from fedprox.report import write_report_on

        return write_report_on([self._as_saved()], path, title or f"fedprox report: {Path(path).stem}")

    def _as_saved(self) -> SavedRun:
        if self.path is not None:
            return load_run(self.path)
        if self.config is None:
            raise RunFolderError("a report needs the run's config, which this result does not have")
        return MemoryRun(Path("not saved"), self.config, self.history, self.summary, self.devices)

    def _repr_html_(self) -> str:
        from fedprox.runs.notebook_view import run_html

        return run_html(self.history, self.summary)
