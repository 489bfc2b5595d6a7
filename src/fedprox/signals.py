"""Signals end a run between two rounds, so that nothing is half done."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

__all__ = ["StopOnSignal"]


class StopOnSignal:
    """A callback that ends the run after the round in which a signal came.

    A second signal of the same kind is answered in the system's usual way, for those who cannot wait.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.signal: signal.Signals | None = None
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopOnSignal:
        for number in self._signals:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self, progress: object) -> bool:
        """Return whether the run is to end."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code that tells of the signal: 130 for an interrupt, 143 for a termination."""
        return 0 if self.signal is None else 128 + self.signal

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        signal.signal(number, self._before[self.signal])
