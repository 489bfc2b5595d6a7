"""`fedprox compare` and `fedprox demo`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedprox.cli.app import (
    ConfigName,
    Json,
    Overrides,
    answers_errors,
    app,
    error_console,
    next_folder,
    output_console,
    say_json,
)
from fedprox.cli.completion import complete_method

if TYPE_CHECKING:
    from fedprox.experiments.suite import Suite
    from fedprox.runs.curve_axis import Axis

__all__ = ["compare", "demo"]


@app.command()
@answers_errors
def compare(
    config: ConfigName,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--method",
            metavar="NAME[:KEY=VALUE,…]",
            autocompletion=complete_method,
            help="A method to compare; repeatable. Default: those of CONFIG, or fedavg, fedprox:mu=0 and fedprox:mu=1.",
        ),
    ] = None,
    set_: Overrides = [],  # noqa: B006 - as above
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many seeds, starting at the config's; by default CONFIG's number, or 1."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for runs, table, picture and report.")] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="How many cores; 0: all. On Ray, how many runs at a time; 0: one.")
    ] = 0,
    x: Annotated[
        str, typer.Option("--x", metavar="AXIS", help="Compare over rounds, over seconds (on the clock) or over bytes.")
    ] = "rounds",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in --out.")] = False,
    records: Annotated[
        Path | None, typer.Option(help="A folder for small records of finished runs; those in it count as done.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run several methods on the same draws and show the difference: a table, a picture and a report.

    An interrupted comparison continues with --resume: finished runs are kept, the others resume.

    Example: fedprox compare synthetic-1-1 -m fedavg -m fedprox:mu=1 -s devices.stragglers=0.9 --seeds 5
    """
    from fedprox.config import with_overrides
    from fedprox.config.recipes import load_settings
    from fedprox.core.errors import ConfigError
    from fedprox.experiments.best_mu import asks_for_best
    from fedprox.experiments.compare import check_axis
    from fedprox.experiments.suite import read_suite
    from fedprox.runs.curve_axis import find_axis

    if resume and out is None:
        raise ConfigError("`--out` must be given with --resume: the folder of the comparison to continue")
    resume = resume or records is not None
    settings, suite = read_suite(with_overrides(load_settings(config), set_))
    suite = replace(suite, methods=tuple(method or suite.methods), seeds=seeds or suite.seeds)
    axis = find_axis(x)
    check_axis(settings, suite.methods, axis)
    folder = out or next_folder(f"compare-{Path(config).stem}")
    with _says_how_to_resume(folder):
        if any(map(asks_for_best, suite.methods)):
            suite, resume = _with_mus(settings, suite, folder, workers, resume, records, as_json), True
        if suite.stragglers:
            _run_suite(settings, suite, folder, workers, axis, as_json, title=config, resume=resume)
        else:
            methods = list(suite.methods)
            _compare(settings, methods, suite.seeds, folder, workers, axis, as_json, config, resume, records)


@app.command()
@answers_errors
def demo(
    out: Annotated[Path | None, typer.Option(help="The folder for runs, table, picture and report.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 200,
    as_json: Json = False,
) -> None:
    """Compare FedAvg and FedProx on Synthetic(1,1) with 90% stragglers.

    Example: fedprox demo
    """
    from fedprox.config import with_overrides
    from fedprox.config.recipes import load_settings
    from fedprox.runs.curve_axis import ROUNDS

    settings = with_overrides(load_settings("synthetic-1-1"), ["devices.stragglers=0.9", f"rounds={rounds}"])
    methods = ["fedavg", "fedprox:mu=0", "fedprox:mu=1"]
    folder = out or next_folder("demo")
    _compare(settings, methods, 1, folder, 0, ROUNDS, as_json, title="Synthetic(1,1), 90% stragglers")


@contextmanager
def _says_how_to_resume(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"fedprox: interrupted; the same command with --out {folder} --resume continues", err=True)
        raise typer.Exit(130) from None


def _with_mus(
    settings: dict[str, Any],
    suite: Suite,
    folder: Path,
    workers: int,
    resume: bool,
    records: Path | None,
    as_json: bool,
) -> Suite:
    """Return the suite with every `mu=best` replaced by the mu that shorter runs choose."""
    from fedprox.experiments.best_mu import choose_mus
    from fedprox.experiments.scheduler import Event
    from fedprox.report.terminal import RunBars
    from fedprox.runs.folder import check_empty

    if not resume:
        check_empty(folder)
    with RunBars(error_console()) as bars:

        def show(event: Event) -> None:
            bars.show(f"choosing mu: {event.job.name}", event.round, event.job.config.rounds, event.metrics)

        methods, found = choose_mus(
            settings,
            suite.methods,
            suite.mus,
            suite.mu_rounds,
            out=folder,
            workers=workers,
            records=records,
            on_event=show,
        )
    for method, scores in found.items():
        tried = ", ".join(f"{mu:g}: {score:.4f}" for mu, score in scores.items())
        if not as_json:
            typer.echo(f"{method} has the lowest loss after {suite.mu_rounds} rounds ({tried})")
    return replace(suite, methods=tuple(methods))


def _compare(
    settings: dict[str, Any],
    methods: list[str],
    seeds: int,
    folder: Path,
    workers: int,
    axis: Axis,
    as_json: bool,
    title: str,
    resume: bool = False,
    records: Path | None = None,
) -> None:
    from fedprox.experiments.best_mu import CHOOSING
    from fedprox.experiments.compare import compare
    from fedprox.experiments.scheduler import Event
    from fedprox.report import write_report
    from fedprox.report.plot import curves, save_picture
    from fedprox.report.terminal import RunBars

    with RunBars(error_console()) as bars:

        def show(event: Event) -> None:
            name = f"{event.job.name}, seed {event.job.config.seed}" if seeds > 1 else event.job.name
            bars.show(name, event.round, event.job.config.rounds, event.metrics)

        comparison = compare(
            settings, methods, seeds=seeds, out=folder, workers=workers, resume=resume, records=records, on_event=show
        )
    picture = save_picture(curves(comparison.histories, title, axis), folder)
    compared = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != CHOOSING)
    page = write_report(compared, folder / "report.html", title)
    table = comparison.table()
    _write_table(folder, table)
    along = {} if axis.name == "rounds" else {"along": comparison.along(axis)}
    if as_json:
        say_json({"out": str(folder), "picture": str(picture), "report": str(page), "table": table, **along})
        return
    from fedprox.report.terminal import along_table, comparison_table

    output_console().print(comparison_table(table))
    if along:
        typer.echo("")
        output_console().print(along_table(along["along"]))
    typer.echo(f"\n{comparison.verdict()}\n")
    _say_where(folder, picture, page)


def _run_suite(
    settings: dict[str, Any],
    suite: Suite,
    folder: Path,
    workers: int,
    axis: Axis,
    as_json: bool,
    title: str,
    resume: bool,
) -> None:
    from fedprox.experiments.scheduler import Event
    from fedprox.experiments.suite import run_suite, suite_table
    from fedprox.report import write_report
    from fedprox.report.plot import save_picture, suite_curves
    from fedprox.report.terminal import RunBars, comparison_table

    with RunBars(error_console()) as bars:

        def show(event: Event) -> None:
            config = event.job.config
            name = f"{event.job.name}, {config.devices.stragglers:.0%} stragglers, seed {config.seed}"
            bars.show(name, event.round, config.rounds, event.metrics)

        comparisons = run_suite(settings, suite, out=folder, workers=workers, resume=resume, on_event=show)
    histories = {share: one.histories for share, one in comparisons.items()}
    picture = save_picture(suite_curves(histories, title, axis), folder)
    page = write_report([folder], folder / "report.html", title)
    table = suite_table(comparisons)
    _write_table(folder, table)
    if as_json:
        say_json({"out": str(folder), "picture": str(picture), "report": str(page), "table": table})
        return
    for share, one in comparisons.items():
        typer.echo(f"{share:.0%} stragglers")
        output_console().print(comparison_table(one.table()))
        typer.echo(f"{one.verdict()}\n")
    _say_where(folder, picture, page)


def _say_where(folder: Path, picture: Path, page: Path) -> None:
    typer.echo(f"picture: {picture} (and .pdf)\nreport: {page}\nrun folders: {folder}")
    typer.echo(f"\nOpen the report in a browser: python -m webbrowser {page.resolve().as_uri()}")


def _write_table(folder: Path, table: Any) -> None:
    from fedprox.core.files import write_atomically

    write_atomically(folder / "table.json", (json.dumps(table, indent=2) + "\n").encode())
