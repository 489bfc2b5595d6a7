"""`fedprox paper`: the paper's table and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedprox.cli.app import Json, answers_errors, app, error_console, output_console, say_json
from fedprox.cli.completion import complete_paper

if TYPE_CHECKING:
    from fedprox.experiments.scheduler import Event, Job
    from fedprox.paper.runs import Setting

__all__ = ["paper"]


@app.command()
@answers_errors
def paper(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="list, all, table1, or figure1 to figure12.", autocompletion=complete_paper
        ),
    ],
    scale: Annotated[str, typer.Option(help="smoke (seconds), desk (two hours), night (many hours) or full.")] = "desk",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per curve; by default those of the scale.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for runs and figures; by default runs/paper-SCALE.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="The folder for figures and table, if not that of --out.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="The file for the page of results, if not results.md there.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="How many cores; 0: all.")] = 0,
    only: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Run only these data sets, separated by commas; draw nothing, or with --figures their panels.",
        ),
    ] = "",
    records: Annotated[
        Path | None, typer.Option(help="A folder for small records of finished runs; those in it count as done.")
    ] = None,
    background: Annotated[bool, typer.Option("--background", help="Run at the lowest priority.")] = False,
    only_draw: Annotated[bool, typer.Option("--only-draw", help="Run nothing; draw from existing runs.")] = False,
    as_json: Json = False,
) -> None:
    """Make a table or figure of the paper, with bands over seeds.

    Runs that are in the folder already are not run again; `all` also writes a
    page of results with a verdict on each claim.

    Example: fedprox paper figure2 --scale smoke
    """
    from fedprox.core.priority import lower_priority
    from fedprox.paper.make import list_names, make
    from fedprox.paper.runs import Setting
    from fedprox.paper.scales import find_scale

    setting = Setting(out or Path("runs") / f"paper-{scale}", find_scale(scale), seeds, records)
    if name == "list":
        _list(setting, workers, as_json)
        return
    if background:
        lower_priority()
    with _Bar(setting, workers) as bar:
        made = make(
            list_names(name),
            setting,
            figures=figures,
            page=page,
            workers=workers,
            only=[each for each in only.split(",") if each],
            only_draw=only_draw,
            on_start=bar.start,
            on_event=bar.show,
        )
    if as_json:
        say_json({"out": str(setting.out), "runs": made.runs, "files": [str(file) for file in made.files]})
        return
    for line in made.lines:
        typer.echo(line)
    for file in made.files:
        typer.echo(file)


def _list(setting: Setting, workers: int, as_json: bool) -> None:
    from fedprox.core.machine import usable_cores
    from fedprox.paper.make import overview
    from fedprox.paper.remaining import duration

    cores = workers or usable_cores()
    rows = overview(setting)
    if as_json:
        say_json({"scale": setting.scale.name, "out": str(setting.out), "experiments": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "what", "runs", "left", "measured"):
        table.add_column(heading, justify="left" if heading in ("name", "what") else "right")
    for row in rows:
        table.add_row(
            row["name"], row["about"], str(row["runs"]), str(row["left"]), _measured_words(row, cores, duration)
        )
    output_console().print(table)
    typer.echo(f"\nscale {setting.scale.name}: {setting.scale.about}")
    typer.echo(
        f"measured: the times of runs in {setting.out}"
        f"{f', in {setting.records}' if setting.records else ''} and of those behind the published figures, "
        f"divided by {cores}, the number of cores"
    )


def _measured_words(row: dict[str, Any], cores: int, duration: Callable[[float], str]) -> str:
    if row["runs"] == 0:
        return ""
    if row["measured_runs"] == 0:
        return "not measured"
    words = duration(row["measured_seconds"] / cores)
    return words if row["measured_runs"] == row["runs"] else f"{words} for {row['measured_runs']} of the runs"


class _Bar:
    """The remaining runs and time: a bar on a terminal, elsewhere a line for every twentieth that is done."""

    def __init__(self, setting: Setting, workers: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        from fedprox.core.machine import usable_cores

        self._setting, self._cores = setting, workers or usable_cores()
        self._console = error_console()
        self._progress = Progress(
            BarColumn(bar_width=40),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._said = 0
        self._remaining: Any = None
        self._task: Any = None

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def start(self, todo: Sequence[Job], done: int) -> None:
        """Record the runs to do."""
        from fedprox.paper.remaining import Remaining
        from fedprox.paper.runs import expected_seconds
        from fedprox.runs.summary_text import counted

        expected = {job.out: expected_seconds(job, self._setting.scale) for job in todo}
        self._remaining = Remaining(expected, self._cores)
        self._task = self._progress.add_task(self._text(), total=1.0)
        self._say(f"{counted(len(todo), 'run')} to do, {done} done already")

    def show(self, event: Event) -> None:
        """Move the bar."""
        self._remaining.reached(event.job.out, event.round / event.job.config.rounds)
        share = self._remaining.share
        self._progress.update(self._task, completed=share, description=self._text())
        if int(20 * share) > self._said:
            self._said = int(20 * share)
            self._say(self._text())

    def _text(self) -> str:
        from fedprox.paper.remaining import duration

        left = self._remaining
        return f"{left.finished} of {left.total} runs, about {duration(left.seconds())} left"

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            typer.echo(text, err=True)
