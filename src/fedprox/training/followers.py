"""What follows a run in progress: a progress bar, and experiment trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedprox.config import Config
from fedprox.core.errors import ConfigError, short
from fedprox.report.progress import open_bars
from fedprox.training.result import Callback, Progress, Result
from fedprox.training.trackers import Tracker, build

__all__ = ["Followers"]


class Followers:
    """The bar and the trackers of one run.

    Args:
      config: the run's config.
      out: the run folder; trackers write in it or beside it.
      name: the label of the bar; defaults to the config's method.
      progress: show a bar, on a terminal or in a notebook only.
      track: names of trackers, or one name.
    """

    def __init__(
        self, config: Config, out: str | Path | None, *, name: str = "", progress: bool, track: str | Sequence[str]
    ) -> None:
        if not isinstance(track, (str, Sequence)) or not all(isinstance(each, str) for each in track):
            raise ConfigError(f"`track` must be the name of a tracker, or a list of names; got {short(track)}")
        names = [track] if isinstance(track, str) else list(track)
        if names and out is None:
            raise ConfigError(f"`track` must be used with `out`, the run folder; got track={names[0]!r} without it")
        self._config, self._path = config, None if out is None else Path(out)
        self._trackers: list[Tracker] = [build(name, Path(out), config) for name in names if out is not None]
        self._name = name or config.method.name
        self._progress, self._open = progress, ExitStack()

    def __enter__(self) -> Followers:
        self._bars = self._open.enter_context(open_bars()) if self._progress else None
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        self._close_trackers({"ended": "failed"})

    @property
    def callbacks(self) -> list[Callback]:
        """What the loop calls after every round."""
        return [*([self._show] if self._bars is not None else []), *self._trackers]

    def ended(self, result: Result) -> Result:
        """Close the trackers, and return the result with its config and folder."""
        self._close_trackers(result.summary)
        return replace(result, config=self._config, path=self._path)

    def _close_trackers(self, summary: Mapping[str, Any]) -> None:
        """Close the trackers that are not closed yet."""
        while self._trackers:
            self._trackers.pop(0).close(summary)

    def _show(self, progress: Progress) -> None:
        if self._bars is not None:
            self._bars.show(self._name, progress.round, progress.rounds, progress.metrics)
