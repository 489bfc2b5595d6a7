"""Output in the terminal: progress during a run, a table at the end.

Progress is shown only on a terminal, not in a pipe or a log file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedprox.core.metric_columns import own_text, own_values
from fedprox.runs.summary_text import number, percent

__all__ = ["RunBars", "along_table", "comparison_table"]


class RunBars:
    """Progress bars, one per run: round, loss, accuracy and time left.

    With `keep` false a bar disappears when its run is done, so that hundreds of runs fit on a screen.
    """

    def __init__(self, console: Console, *, keep: bool = True) -> None:
        self._keep = keep
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> RunBars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, name: str, round: int, rounds: int, metrics: Mapping[str, Any] | None) -> None:
        """Move the bar of run `name`."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=rounds, values="")
        update: dict[str, Any] = {"completed": round, "visible": self._keep or round < rounds}
        if metrics is not None:
            update["values"] = f"loss {number(metrics['train_loss'], '.4f')}  acc {percent(metrics['test_accuracy'])}"
            update["values"] += own_text(metrics)
        self._progress.update(self._tasks[name], **update)


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of a comparison as a table, with a column for each custom metric."""
    own = list(dict.fromkeys(name for row in rows for name in own_values(row)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method")
    for heading in ("train loss", "train acc", "test acc", "best test acc", *own, "diverged"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            number(row["train_loss"], ".4f") + _deviation(row["train_loss_deviation"], ".4f", 1),
            percent(row["train_accuracy"]) + _deviation(row["train_accuracy_deviation"], ".1f", 100),
            percent(row["test_accuracy"]) + _deviation(row["test_accuracy_deviation"], ".1f", 100),
            percent(row["best_test_accuracy"]),
            *(number(row.get(name), ".4g") + _deviation(row.get(f"{name}_deviation"), ".2g", 1) for name in own),
            _outcome(row),
        )
    return table


def _outcome(row: Mapping[str, Any]) -> str:
    """Return how many runs diverged, or exploded without meeting the paper's rule for divergence."""
    if row["diverged"]:
        return f"{row['diverged']} of {row['seeds']}"
    return f"exploded, {row['exploded']} of {row['seeds']}" if row.get("exploded") else "no"


def along_table(along: Mapping[str, Any]) -> Table:
    """Return a comparison at equal seconds or bytes as a table."""
    unit, end, loss = along["x"], along["end"], along["loss"]
    table = Table(box=None, pad_edge=False, header_style="bold", title=f"after {end:,.0f} {unit}", title_justify="left")
    table.add_column("method")
    for heading in ("train loss", "test acc", f"{unit} to loss {number(loss, '.4f')}"):
        table.add_column(heading, justify="right")
    for row in along["rows"]:
        reached = number(row["reached"], ",.0f")
        table.add_row(row["method"], number(row["train_loss"], ".4f"), percent(row["test_accuracy"]), reached)
    return table


def _deviation(value: float | None, form: str, factor: float) -> str:
    return "" if value is None else f" ± {format(factor * value, form)}"
