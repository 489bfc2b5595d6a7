"""`fedprox run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import ConfigName, Json, Overrides, answers_errors, app, next_folder, say_json
from fedprox.cli.completion import complete_tracker

__all__ = ["run"]


@app.command()
@answers_errors
def run(
    config: ConfigName,
    set_: Overrides = [],  # noqa: B006 - Typer reads the default and never changes it
    out: Annotated[Path | None, typer.Option(help="The run folder; by default a new one in runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    track: Annotated[
        list[str],
        typer.Option(
            "--track",
            metavar="NAME",
            help="Also log to tensorboard, mlflow or wandb; repeatable.",
            autocompletion=complete_tracker,
        ),
    ] = [],  # noqa: B006 - as above
    as_json: Json = False,
) -> None:
    """Train one federated model and write its run folder.

    An interrupt (exit code 130) or a termination (143) ends the run after the
    current round, with a checkpoint from which --resume continues.

    Example: fedprox run synthetic-1-1 -s method.mu=1 -s devices.stragglers=0.9 --track tensorboard
    """
    import signal

    from fedprox.config import Config, with_overrides
    from fedprox.config.recipes import load_settings
    from fedprox.core.errors import ConfigError
    from fedprox.core.signals import StopOnSignal
    from fedprox.runs.summary_text import summary_lines

    if resume and out is None:
        raise ConfigError("`--out` must be given with --resume: the run folder to continue")
    settled = Config.from_dict(with_overrides(load_settings(config), set_))
    folder = out or next_folder(Path(config).stem)
    from fedprox.training.train import train  # after the checks: this imports JAX

    with StopOnSignal(signal.SIGINT, signal.SIGTERM) as stop:
        result = train(settled, out=folder, resume=resume, callbacks=[stop], progress=True, track=track)
    if as_json:
        say_json({"out": str(folder), "summary": result.summary})
    else:
        for text in (*summary_lines(result.summary), f"run folder: {folder}"):
            typer.echo(text)
    if stop.signal is not None and result.summary["ended"] == "stopped":
        typer.echo(f"fedprox: interrupted; the same command with --out {folder} --resume continues", err=True)
    raise typer.Exit(stop.exit_code)
