"""`fedprox watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import answers_errors, app, output_console

__all__ = ["watch"]


@app.command()
@answers_errors
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder that holds several.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and leave.")] = False,
) -> None:
    """Follow a run, or all runs of a sweep, until they end.

    On a terminal the table moves; elsewhere a line is printed whenever a run has measured another round.

    Example: fedprox watch runs/synthetic-1-1-1
    """
    from rich.live import Live

    from fedprox.report.watch import follow, states, table, text_line

    console = output_console()
    if once:
        current = states(run)
        console.print(table(current, console.width))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for current in follow(run):
                live.update(table(current, console.width), refresh=True)
    else:
        shown: dict[str, str] = {}
        for current in follow(run):
            for state in current:
                line = text_line(state)
                if shown.get(state.name) != line:
                    typer.echo(line)
                shown[state.name] = line
    if any(state.state == "interrupted" for state in current):
        typer.echo("a run was interrupted before it ended; fedprox run CONFIG --out RUN --resume continues it")
