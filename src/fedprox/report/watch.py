"""Following runs from their folders: what state each is in, how far it is, and its loss as a small curve."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedprox.core.reading import printable
from fedprox.runs.columns import columns_needed
from fedprox.runs.folder import is_running
from fedprox.runs.reader import SavedRun, find_runs
from fedprox.runs.summary_text import number, percent

__all__ = ["RunStatus", "follow", "sparkline", "states", "table", "text_line"]

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class RunStatus:
    """The state of a run: `state` is running, interrupted (it can be resumed), or how it ended."""

    name: str
    state: str
    round: int
    rounds: int
    last: dict[str, Any]  # the last measured round; empty before the first
    losses: list[float | None]
    seconds_left: float | None

    @property
    def is_over(self) -> bool:
        """Whether the run is no longer in progress."""
        return self.state != "running"


def states(path: str | Path) -> list[RunStatus]:
    """Return the state of the run, or of each run below the folder."""
    top = Path(path)
    with columns_needed(top):
        return [_state(run, top) for run in find_runs([top])]


def follow(
    path: str | Path, pause: float = 0.5, sleep: Callable[[float], None] = time.sleep
) -> Iterator[list[RunStatus]]:
    """Yield the states repeatedly, until all runs are over."""
    while True:
        current = states(path)
        yield current
        if all(state.is_over for state in current):
            return
        sleep(pause)


def table(current: Sequence[RunStatus], width: int = 120) -> Table:
    """Return the states as a table with a curve and, where the terminal is wide enough, a bar for each run."""
    is_wide = width >= 110
    result = Table(box=None, pad_edge=False, header_style="bold")
    result.add_column("run", overflow="fold")
    for heading in ("state", *([""] if is_wide else []), "round", "train loss", "test acc", "loss so far", "left"):
        right = heading in ("round", "train loss", "test acc", "left")
        result.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for state in current:
        bar = [ProgressBar(total=state.rounds, completed=state.round, width=20)] if is_wide else []
        result.add_row(
            Text(printable(state.name)),  # a name is not markup
            Text(str(state.state)),
            *bar,
            f"{state.round}/{state.rounds}",
            number(state.last.get("train_loss"), ".4f"),
            percent(state.last.get("test_accuracy")),
            sparkline(state.losses, 24 if is_wide else 12),
            "" if state.seconds_left is None else f"{state.seconds_left:.0f} s",
        )
    return result


def text_line(state: RunStatus) -> str:
    """Return a state as one line of plain text."""
    return (
        f"{state.name}: {state.state}, round {state.round} of {state.rounds}, "
        f"train loss {number(state.last.get('train_loss'), '.4f')}, "
        f"test accuracy {percent(state.last.get('test_accuracy'))}"
    )


def sparkline(values: Sequence[float | None], width: int = 24) -> str:
    """Return a curve of at most `width` letters; what is not finite is an exclamation mark.

    >>> sparkline([3.0, 2.0, None, 1.0])
    '█▅!▁'
    """
    step = max(1.0, len(values) / width)
    chosen = [values[int(index * step)] for index in range(min(len(values), width))]
    finite = [value for value in chosen if value is not None]
    if not finite:
        return "!" * len(chosen)
    low, high = min(finite), max(finite)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join("!" if value is None else _BLOCKS[round((value - low) * scale)] for value in chosen)


def _state(run: SavedRun, top: Path) -> RunStatus:
    last = run.last if len(run.history) else {}
    now = "running" if is_running(run.path) else "interrupted"
    state = now if run.summary is None else run.summary["ended"]
    done, rounds = last.get("round", 0), run.config.rounds
    left = last["seconds"] / done * (rounds - done) if state == "running" and done else None
    name = run.path.name if run.path == top else str(run.path.relative_to(top))
    return RunStatus(name, state, done, rounds, last, run.history.column("train_loss"), left)
