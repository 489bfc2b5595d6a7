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
        help="Use the model of device K, where devices have their own (ditto, pfedme or personal parameters).",
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]


@app.command()
@answers_errors
def evaluate(
    run: Run,
    data: Annotated[
        str,
        typer.Option(help="A CSV, Parquet or .npz file, a LEAF folder or a data set; by default the run's own."),
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
    data: Annotated[Path, typer.Option(help="A CSV or Parquet file, an .npz file with the array x, or an .npy file.")],
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .npy file for the labels; by default they are printed.")
    ] = None,
    device: Device = None,
) -> None:
    """Print the label that a saved model gives each example.

    In a table, the features are the columns that were features in the run's own data.

    Example: fedprox predict runs/synthetic-1-1-1 --data new.csv
    """
    import csv

    import numpy as np

    from fedprox.core.errors import ConfigError, DataError
    from fedprox.runs.evaluate import predict
    from fedprox.runs.examples import read_examples
    from fedprox.runs.reader import load_run

    if out is not None and out.suffix not in (".csv", ".npy"):
        raise ConfigError(f"`--out` must end in .csv or .npy; got {str(out)!r}")
    labels = predict(run, read_examples(data, load_run(run).config), device=device)
    if out is None:
        typer.echo("\n".join(map(str, labels.tolist())))
        return
    try:
        if out.suffix == ".csv":
            with out.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([["label"], *([label] for label in labels.tolist())])
        else:
            np.save(out, labels, allow_pickle=False)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror}") from None
