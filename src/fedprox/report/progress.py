"""Progress bars on a terminal or in a notebook; nothing in a pipe or a log file."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from fedprox.core.metric_columns import own_text
from fedprox.runs.summary_text import number, percent

__all__ = ["Bars", "NotebookBars", "bar_html", "in_notebook", "open_bars"]


class Bars(Protocol):
    """Something that shows how far runs are."""

    def __enter__(self) -> Self:
        """Start to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""

    def show(self, name: str, round: int, rounds: int, metrics: Mapping[str, Any] | None) -> None:
        """Move the bar of run `name`."""


def open_bars() -> Bars:
    """Return the progress bars for the current environment."""
    if in_notebook():
        return NotebookBars()
    from rich.console import Console

    from fedprox.report.terminal import RunBars

    return RunBars(Console(stderr=True))


def in_notebook() -> bool:
    """Return whether the program runs in a notebook's kernel, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookBars:
    """One bar of HTML for each run, below the notebook's cell."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    def __enter__(self) -> NotebookBars:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, name: str, round: int, rounds: int, metrics: Mapping[str, Any] | None) -> None:
        """Move the bar of run `name`; between measured rounds it keeps the last values."""
        from IPython.display import HTML, display

        if metrics is None and name in self._handles and round < rounds:
            return
        content = HTML(bar_html(name, round, rounds, metrics))
        if name in self._handles:
            self._handles[name].update(content)
        else:
            self._handles[name] = display(content, display_id=True)


def bar_html(name: str, round: int, rounds: int, metrics: Mapping[str, Any] | None) -> str:
    """Return a bar with its values as HTML.

    >>> bar_html("fedprox", 3, 10, {"train_loss": 0.5, "test_accuracy": 0.25})
    '<div>fedprox <progress value="3" max="10"></progress> round 3 of 10, loss 0.5000, accuracy 25.0%</div>'
    """
    values = ""
    if metrics is not None:
        values = f", loss {number(metrics['train_loss'], '.4f')}, accuracy {percent(metrics['test_accuracy'])}"
        values += html.escape(own_text(metrics, ", "))
    bar = f'<progress value="{round}" max="{rounds}"></progress>'
    return f"<div>{html.escape(name)} {bar} round {round} of {rounds}{values}</div>"
