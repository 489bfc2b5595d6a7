"""`fedprox tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedprox.cli.app import ConfigName, Json, Overrides, answers_errors, app, error_console, say_json

if TYPE_CHECKING:
    from fedprox.experiments.tune import Tuning

__all__ = ["tune"]


@app.command()
@answers_errors
def tune(
    config: ConfigName,
    set_: Overrides = [],  # noqa: B006 - Typer reads the default and never changes it
    out: Annotated[Path | None, typer.Option(help="The folder for the runs; by default runs/tune-CONFIG.")] = None,
    rates: Annotated[str, typer.Option(metavar="RATE,…", help="The learning rates to try.")] = "",
    mus: Annotated[str, typer.Option(metavar="MU,…", help="The values of mu to try.")] = "",
    trials: Annotated[int, typer.Option(min=0, help="Let Optuna suggest this many values for each instead.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds for each value.")] = 1,
    workers: Annotated[
        int, typer.Option(min=0, help="How many cores; 0: all. On Ray, how many runs at a time; 0: one.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Choose the learning rate and mu as the paper does, and write the config.

    First the learning rate on FedAvg with E = 1 and no stragglers, then mu from
    0.001, 0.01, 0.1 and 1 on the config itself, for its method if that has a
    proximal term and otherwise for FedProx. A single value is used without a
    run. Repeated with the same folder, it continues.

    Example: fedprox tune synthetic-1-1 -s devices.stragglers=0.9 --out runs/tune && fedprox run runs/tune/tuned.toml
    """
    from fedprox.config import Config, with_overrides
    from fedprox.config.recipes import load_settings
    from fedprox.experiments.scheduler import Event
    from fedprox.experiments.tune import MUS, RATES, tune
    from fedprox.report.terminal import RunBars

    settings = with_overrides(load_settings(config), set_)
    folder = out or Path("runs") / f"tune-{Path(config).stem}"
    with RunBars(error_console(), keep=False) as bars:

        def show(event: Event) -> None:
            bars.show(event.job.name, event.round, event.job.config.rounds, event.metrics)

        result = tune(
            settings,
            out=folder,
            rates=_numbers("--rates", rates) or RATES,
            mus=_numbers("--mus", mus) or MUS,
            trials=trials,
            seeds=seeds,
            workers=workers,
            on_event=show,
        )
    chosen = folder / "tuned.toml"
    if as_json:
        scores = {
            choice.key: {str(v): score for v, score in choice.scores.items()} for choice in (result.rate, result.mu)
        }
        values = {choice.key: choice.value for choice in (result.rate, result.mu)}
        say_json({"out": str(chosen), "chosen": values, "scores": scores, "judged": _rule(result)})
        return
    typer.echo(f"On FedAvg with E = 1 and no stragglers: {result.rate.words()}")
    tuned, given = result.config.method.name, Config.from_dict(settings).method.name
    why = "" if tuned == given else f" ({given} has no proximal term)"
    typer.echo(f"On {tuned} with this rate{why}: {result.mu.words()}")
    typer.echo(f"{_rule(result)}\nconfig: {chosen}")


def _rule(result: Tuning) -> str:
    return (
        f"Judged by the {result.mu.measure} loss, averaged over the last tenth of the rounds and over seeds; "
        "test data is not used, and values with which a run diverges are excluded."
    )


def _numbers(option: str, text: str) -> tuple[float, ...]:
    from fedprox.core.errors import ConfigError

    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"`{option}` must be numbers separated by commas; got {text!r}") from None
    if any(not number > 0 for number in numbers):
        raise ConfigError(f"`{option}` must be numbers > 0; got {text!r}")
    return numbers
