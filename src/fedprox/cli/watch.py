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
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Show the curves in a browser, until interrupted.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve: the port; 0: any free port.")] = 0,
) -> None:
    """Follow a run, or all runs of a sweep or comparison, until they end.

    On a terminal the table is updated in place; elsewhere a line is printed for
    each newly measured round. With --serve the report's curves are updated in a
    browser on this machine, at an address with a random token.

    Example: fedprox watch runs/synthetic-1-1-1 --serve
    """
    if serve:
        _serve(run, port)
        return
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


def _serve(run: Path, port: int) -> None:
    import threading

    from fedprox.report.live import LiveServer

    with LiveServer(run, port) as server:
        try:
            typer.echo(f"{server.address}\nOpen this address in a browser on this machine; Ctrl-C ends it.")
            threading.Event().wait()
        except KeyboardInterrupt:
            return
