"""`fedprox calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import ConfigName, Json, Overrides, answers_errors, app, say_json

__all__ = ["calibrate"]


@app.command()
@answers_errors
def calibrate(
    config: ConfigName,
    set_: Overrides = [],  # noqa: B006 - Typer reads the default and never changes it
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="The profile that gets the measured speed: equal, phones or a file.")
    ] = "equal",
    out: Annotated[Path, typer.Option(help="The profile to write.")] = Path("profile.toml"),
    as_json: Json = False,
) -> None:
    """Measure how many samples a second this machine trains, and write a profile for the clock.

    Example: fedprox calibrate femnist -s model.name=cnn --profile phones --out phones-cnn.toml
    """
    from fedprox.config import Config, with_overrides
    from fedprox.config.recipes import load_settings
    from fedprox.core.errors import ConfigError
    from fedprox.participation.clock import read_profile, write_profile

    settled = Config.from_dict(with_overrides(load_settings(config), set_))
    chosen = read_profile(profile)
    if out.exists():
        raise ConfigError(f"`--out` must be a new file; {out} exists")
    from fedprox.core.files import write_atomically
    from fedprox.engines.calibration import calibrated, measure_speed  # after the checks: this imports JAX

    speed = measure_speed(settled)
    batches = f"batches of {speed.batch_size}" if speed.batch_size else "whole batches"
    what = f"{speed.model}, {speed.solver}, {batches}"
    comment = f"The profile {profile}, with what one machine was measured to train per second:\n{what}."
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, write_profile(calibrated(chosen, speed), comment).encode())
    except OSError as error:
        raise ConfigError(f"profile {out} cannot be written: {error.strerror}") from None
    if as_json:
        say_json({"out": str(out), **asdict(speed)})
        return
    typer.echo(
        f"{speed.samples_per_second:,.0f} samples a second ({what}); the slowest of the solves: {speed.slowest:,.0f}\n"
        f"profile: {out}\n"
        f"use it:  fedprox run {config} -s systems.model=clock -s systems.profile={_as_path(out)}"
    )


def _as_path(out: Path) -> str:
    return str(out) if out.suffix == ".toml" or "/" in str(out) else f"./{out}"
