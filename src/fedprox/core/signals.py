"""Signals end a run between two rounds, so that nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["StopOnSignal", "exits_on_termination", "interrupts_between_rounds"]


class StopOnSignal:
    """A callback that ends the run after the round in which a signal came.

    A second signal of the same kind has its usual effect and ends the process at once.
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
        """The exit code for the signal: 130 for an interrupt, 143 for a termination."""
        return 0 if self.signal is None else 128 + self.signal

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        signal.signal(number, self._before[self.signal])


@contextmanager
def interrupts_between_rounds() -> Iterator[Callable[[], bool]]:
    """Record an interrupt instead of raising it; yield a function that returns whether one came.

    If the program has its own handler for interrupts, or this is not the main thread, nothing is changed. A second
    interrupt raises KeyboardInterrupt as usual.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    with StopOnSignal(signal.SIGINT) as stop:
        yield lambda: stop.signal is not None


@contextmanager
def exits_on_termination() -> Iterator[None]:
    """Turn a SIGTERM into SystemExit(143), so that work in progress is cleaned up as after an interrupt."""
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread alone
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
