"""`fedprox data`: list, fetch, prepare and examine data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedprox.cli.app import Json, Overrides, answers_errors, app, error_console, output_console, say_json
from fedprox.cli.completion import complete_data, complete_population

if TYPE_CHECKING:
    from fedprox.data.partial_download import Progress
    from fedprox.data.sources import Source
    from fedprox.models import Model
    from fedprox.population import Population

__all__ = ["commands"]

commands = typer.Typer(
    help="Data sets: list, fetch, prepare, examine.\n\nExample: fedprox data prepare mnist",
    no_args_is_help=True,
)
app.add_typer(commands, name="data")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="mnist, femnist, shakespeare, sent140, cifar10 or fashion_mnist.",
        autocompletion=complete_data,
    ),
]
From = Annotated[
    list[Path],
    typer.Option("--from", metavar="DIR", help="A folder with original files, or DIR/NAME with them."),
]
Use = Annotated[
    list[str], typer.Option("--use", metavar="FILE", help="Use this original file where several are suitable.")
]


@commands.command("list")
@answers_errors
def list_(as_json: Json = False) -> None:
    """Show the data sets, what they need, and what is prepared.

    Example: fedprox data list
    """
    from fedprox.data.sources import SOURCES, find, home

    rows = []
    for source in SOURCES.values():
        ready = sorted(path.name for path in (home() / "populations").glob(f"{source.name}-*"))
        missing = [what for what, path in find(source, []).items() if path is None]
        rows.append({"name": source.name, "title": source.title, "prepared": ready, "not_downloaded": missing})
    if as_json:
        say_json({"home": str(home()), "data": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "what", "prepared", "original files"):
        table.add_column(heading)
    for row in rows:
        absent = "not downloaded: " + ", ".join(row["not_downloaded"]) if row["not_downloaded"] else "here"
        table.add_row(str(row["name"]), str(row["title"]), ", ".join(row["prepared"]) or "no", absent)
    output_console().print(table)
    typer.echo(f"\nkept in {home()} (the environment variable FEDPROX_DATA changes it)")


@commands.command()
@answers_errors
def fetch(name: Name, from_: From = [], use: Use = [], as_json: Json = False) -> None:  # noqa: B006
    """Download the original files of a data set, and check them.

    Example: fedprox data fetch mnist
    """
    from fedprox.data.checksums import sha256
    from fedprox.data.fetch import fetch

    with _bars() as progress:
        files = fetch(_source(name), from_, use, progress)
    if as_json:
        say_json({what: {"file": str(path), "sha256": sha256(path)} for what, path in files.items()})
        return
    for path in files.values():
        typer.echo(f"{sha256(path)}  {path}")


@commands.command()
@answers_errors
def prepare(
    name: Name,
    from_: From = [],  # noqa: B006
    use: Use = [],  # noqa: B006
    vectors: Annotated[Path | None, typer.Option(help="sent140: a GloVe file, as text, zip or npz.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The data seed, which fixes the division into devices.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder to write; by default where `fedprox run` looks.")] = None,
    as_json: Json = False,
) -> None:
    """Prepare a data set for training; missing files are downloaded first.

    Example: fedprox data prepare mnist --from ~/downloads
    """
    import importlib
    from dataclasses import replace

    from fedprox.core.errors import ConfigError, DataError
    from fedprox.data.fetch import fetch
    from fedprox.data.sources import population_path

    source = _source(name)
    if vectors is not None:
        if name != "sent140":
            raise ConfigError(f"`--vectors` must be used with sent140; got {name}")
        if not vectors.is_file():
            raise DataError(f"`--vectors` must be a file; got {vectors}")
        source = replace(source, needs=source.needs[:1])
    with _bars() as progress:
        files = fetch(source, from_, use, progress)
    if vectors is not None:
        files["GloVe word vectors"] = vectors
    folder = out or population_path(name, seed)
    importlib.import_module(f"fedprox.data.{name}").prepare(files, folder, seed)
    _say_statistics(name, folder, as_json)


@commands.command()
@answers_errors
def stats(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH",
            help="A data set, a recipe, a config file, or a file or folder that holds data.",
            autocompletion=complete_population,
        ),
    ],
    set_: Overrides = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The picture to write; by default NAME-data.png here.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The data seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Show how heterogeneous the data is: Table 1 next to the paper's, sizes, labels, B and the gradient variance.

    Example: fedprox data stats mnist
    """
    from dataclasses import asdict

    from fedprox.measures.heterogeneity import examine, plot_heterogeneity
    from fedprox.report.plot import save
    from fedprox.runs.summary_text import counted

    population, model = _named(name, seed, set_)
    found = examine(population, model)
    file = out or Path(f"{Path(name).name}-data.png")
    if as_json:
        picture = save(plot_heterogeneity(population, found, Path(name).name), file)
        say_json({"data": name, "picture": str(picture), **asdict(found)})
        return
    _print_statistics(name, asdict(found))
    typer.echo(
        f"\n{found.train_samples} training and {found.test_samples} test samples; "
        f"{counted(found.without_test, 'device')} without test data"
        + (f"; {found.labels_per_device:.1f} different labels per device" if found.labels_per_device else "")
    )
    if found.dissimilarity is not None:
        typer.echo(
            f"at the initial model: B = {found.dissimilarity:.3g}, gradient variance = {found.gradient_variance:.3g}"
        )
    typer.echo(f"picture: {save(plot_heterogeneity(population, found, Path(name).name), file)}")


def _source(name: str) -> Source:
    from fedprox.core.errors import ConfigError, nearest
    from fedprox.data.sources import SOURCES

    if name not in SOURCES:
        raise ConfigError(f"NAME must be one of {', '.join(SOURCES)}; got {name!r}{nearest(name, SOURCES)}")
    return SOURCES[name]


def _named(name: str, seed: int, overrides: list[str]) -> tuple[Population, Model | None]:
    """Return the population that a name or path stands for, and a model that it can be measured with."""
    from fedprox import data
    from fedprox.config import Config, with_overrides
    from fedprox.config.parts import find_part
    from fedprox.config.recipes import load_settings, names
    from fedprox.data.sources import SOURCES
    from fedprox.population.folder import verify_population

    is_config = name.endswith(".toml") or name in names()
    settings: dict[str, Any] = load_settings(name) if is_config else {"data": data.find_settings(name)}
    settings.pop("compare", None)
    settings["data"] = {"seed": seed, **settings.get("data", {})}
    settings = with_overrides(settings, overrides)
    chosen = settings["data"]
    if chosen.get("name") == "population":
        verify_population(chosen["path"])
    source = SOURCES.get(str(chosen.get("name")))
    if source is not None and source.pooled and not chosen.get("partition"):
        population = find_part("data", source.name, "data.name")(str(chosen.get("path", "")))
        return population, _softmax(population)
    config = Config.from_dict(settings)
    population = data.load(config)
    if config.model.name or data.paper_model(config.data) != "softmax_regression":
        return population, data.model_for(config, population)
    return population, _softmax(population)


def _softmax(population: Population) -> Model | None:
    """Return softmax regression where it fits the data."""
    from fedprox import models

    usable = population.classes > 0 and population.train.x.dtype.kind == "f"
    return models.build("softmax_regression", population.shape, population.classes) if usable else None


def _say_statistics(name: str, folder: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from fedprox.measures.heterogeneity import examine
    from fedprox.population.folder import open_population, read_manifest
    from fedprox.runs.summary_text import counted

    manifest = read_manifest(folder)
    found = asdict(examine(open_population(folder)))
    if as_json:
        say_json({"out": str(folder), "about": manifest["about"], **found})
        return
    _print_statistics(name, found)
    left_out = manifest["devices_left_out"]["without_training_data"]
    if left_out:
        first = ", ".join(manifest["devices_left_out"]["first"])
        typer.echo(f"left out, since they have no training data: {counted(left_out, 'device')} ({first})")
    typer.echo(f"without test data: {counted(manifest['devices_without_test_data'], 'device')}")
    for key, value in manifest["about"].items():
        listed = [f"{name} {item}" for name, item in value.items()] if isinstance(value, dict) else value
        typer.echo(f"{key}: {', '.join(listed) if isinstance(listed, list) else listed}")
    typer.echo(f"population: {folder}")


def _print_statistics(name: str, found: dict[str, Any]) -> None:
    from rich.table import Table

    from fedprox.data.table1 import PAPER

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for heading in ("devices", "samples", "mean", "stdev"):
        table.add_column(heading, justify="right")
    row = found["statistics"]
    table.add_row(name, f"{row['devices']:,}", f"{row['samples']:,}", f"{row['mean']:,.0f}", f"{row['deviation']:,.0f}")
    if (paper := PAPER.get(name)) is not None:
        table.add_row(
            "Table 1", f"{paper.devices:,}", f"{paper.samples:,}", f"{paper.mean:,.0f}", f"{paper.deviation:,.0f}"
        )
    output_console().print(table)


@contextmanager
def _bars() -> Iterator[Progress]:
    """Show a bar for each file that is downloaded."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = error_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def show(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file)
            bars.update(tasks[file], completed=done, total=total or None)

        yield show
