"""`fedprox sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import (
    ConfigName,
    Json,
    Overrides,
    answers_errors,
    app,
    error_console,
    output_console,
    say_json,
)
from fedprox.cli.completion import complete_setting

__all__ = ["sweep"]


@app.command()
@answers_errors
def sweep(
    config: ConfigName,
    grid: Annotated[
        list[str],
        typer.Option(
            "-g",
            "--grid",
            metavar="KEY=VALUE,…",
            help="Values of a setting, or FIRST..LAST; repeatable.",
            autocompletion=complete_setting,
        ),
    ],
    set_: Overrides = [],  # noqa: B006 - Typer reads the default and never changes it
    out: Annotated[Path | None, typer.Option(help="The folder for the runs; by default runs/sweep-CONFIG.")] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="How many cores; 0: all. On Ray, how many runs at a time; 0: one.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Run every combination of settings and rank them.

    Repeated with the same folder, it keeps finished runs and continues the
    others. A run that fails does not stop the rest; the exit code is then 1, or
    2 if no run can start because of bad input.

    Example: fedprox sweep synthetic-1-1 -g method.mu=0.001,0.01,0.1,1 -g seed=0..4 --out runs/mu
    """
    from fedprox.config import with_overrides
    from fedprox.config.recipes import load_settings
    from fedprox.experiments.scheduler import Event
    from fedprox.experiments.sweep import sweep
    from fedprox.report.terminal import RunBars, comparison_table

    settings = with_overrides(load_settings(config), set_)
    folder = out or Path("runs") / f"sweep-{Path(config).stem}"
    with RunBars(error_console(), keep=False) as bars:

        def show(event: Event) -> None:
            bars.show(event.job.name, event.round, event.job.config.rounds, event.metrics)

        result = sweep(settings, grid, out=folder, workers=workers, on_event=show)
    table = result.table()
    failed = [{"out": str(end.job.out), "error": end.error} for end in result.failed]
    if as_json:
        say_json({"out": str(folder), "table": table, "skipped": result.skipped, "failed": failed})
    else:
        if table:
            output_console().print(comparison_table(table))
        from fedprox.runs.summary_text import counted

        done = len(result.done) - result.skipped
        typer.echo(
            f"\n{counted(done, 'run')} done, {result.skipped} were finished before, {len(failed)} failed; in {folder}"
        )
    for failure in failed:
        typer.echo(f"fedprox: {failure['out']} failed: {failure['error']}", err=True)
    raise typer.Exit(1 if failed else 0)
