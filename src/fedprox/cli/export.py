"""`fedprox export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import Json, answers_errors, app, say_json

__all__ = ["export"]


@app.command()
@answers_errors
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path | None, typer.Option(help="The folder for the tables; by default RUN/export.")] = None,
    format: Annotated[list[str], typer.Option(help="csv or parquet; repeatable.")] = ["csv"],  # noqa: B006 - Typer never changes it
    as_json: Json = False,
) -> None:
    """Write a run's metrics, devices and evaluation as CSV or Parquet tables.

    Example: fedprox export runs/synthetic-1-1-1 --format parquet
    """
    from fedprox.runs.export import export

    files = [str(file) for file in export(run, out, format)]
    if as_json:
        say_json({"files": files})
    else:
        for file in files:
            typer.echo(file)
