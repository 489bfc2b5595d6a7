"""`fedprox report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import Json, answers_errors, app, say_json

__all__ = ["report"]


@app.command()
@answers_errors
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The heading; by default the names of the folders.")] = "",
    as_json: Json = False,
) -> None:
    """Write one HTML page on runs: verdict, curves, participation, fairness, time and configs.

    Runs that differ in their seed alone are shown as one curve with a band. The page needs no network.

    Example: fedprox report runs/demo-1 --out report.html
    """
    from fedprox.report import verdict, write_report

    written = write_report(runs, out, title)
    if as_json:
        from fedprox.runs.reader import find_runs
        from fedprox.runs.seed_groups import group_runs

        groups = group_runs(run for run in find_runs(runs) if len(run.history))
        say_json({"out": str(written), "verdict": verdict(groups), "methods": [group.label for group in groups]})
    else:
        typer.echo(f"report: {written}")
