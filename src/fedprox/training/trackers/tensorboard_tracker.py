"""TensorBoard: event files in the run folder's `tensorboard`; `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from fedprox.config import Config
from fedprox.training.result import Progress
from fedprox.training.trackers import numbers

__all__ = ["TensorBoardTracker", "tracker"]


def tracker(folder: Path, config: Config) -> TensorBoardTracker:
    """Return the tracker for the run in `folder`."""
    return TensorBoardTracker(folder / "tensorboard")


class TensorBoardTracker:
    """Writes each number of a round as a scalar."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: EventFileWriter | None = None

    def __call__(self, progress: Progress) -> None:
        """Write the metrics of a round that was measured."""
        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
            start = SessionLog(status=SessionLog.START)  # a resumed run replaces the rounds after its checkpoint
            self._write(Event(session_log=start, step=progress.round))
        if progress.metrics is not None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(progress.metrics).items()]
            self._write(Event(summary=Summary(value=values), step=progress.round))

    def close(self, summary: Mapping[str, Any]) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        if self._writer is not None:
            self._writer.add_event(event)
