"""`fedprox evaluate` and `fedprox predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import Json, Overrides, answers_errors, app, say_json

__all__ = ["evaluate", "predict"]

Device = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="K",
        help="The device whose model is meant, where devices have their own ([personal], ditto, pfedme).",
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that has ended.")]


@app.command()
@answers_errors
def evaluate(
    run: Run,
    data: Annotated[
        str, typer.Option(help="An .npz file, a LEAF folder or a data set; by default the run's own.")
    ] = "",
    set_: Overrides = [],  # noqa: B006 - Typer reads the default and never changes it
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a saved model on its own data or on other data.

    Example: fedprox evaluate runs/synthetic-1-1-1 --data synthetic -s data.seed=1
    """
    from fedprox.runs.evaluate import data_settings
    from fedprox.runs.summary_text import counted, number, percent

    settled = data_settings(run, data, set_)
    from fedprox.data import load
    from fedprox.runs.evaluate import evaluate

    result = evaluate(run, load(settled) if data or set_ else None, device=device)
    if as_json:
        say_json(result)
        return
    for part, words in (("train", "training part"), ("test", "test part")):
        loss, accuracy = result[f"{part}_loss"], result[f"{part}_accuracy"]
        typer.echo(f"{words}: loss {number(loss, '.4f')}, accuracy {percent(accuracy)}")
    typer.echo(f"{counted(result['examples'], 'example')} on {counted(len(result['devices']), 'device')}")


@app.command()
@answers_errors
def predict(
    run: Run,
    data: Annotated[Path, typer.Option(help="An .npz file with the array x, or an .npy file.")],
    out: Annotated[Path | None, typer.Option(help="An .npy file for the labels; by default they are printed.")] = None,
    device: Device = None,
) -> None:
    """Print the label that a saved model gives each example.

    Example: fedprox predict runs/synthetic-1-1-1 --data new.npz
    """
    import numpy as np

    from fedprox.core.errors import DataError
    from fedprox.runs.evaluate import predict, read_examples

    labels = predict(run, read_examples(data), device=device)
    if out is None:
        typer.echo("\n".join(map(str, labels.tolist())))
        return
    try:
        np.save(out, labels, allow_pickle=False)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror}") from None
