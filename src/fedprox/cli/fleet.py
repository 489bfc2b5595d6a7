"""`fedprox fleet`: read measured devices into a file, and look at fleets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedprox.cli.app import Json, answers_errors, app, output_console, say_json

__all__ = ["commands"]

commands = typer.Typer(
    help="Fleets of devices for the clock: import, show.\n\nExample: fedprox fleet show phones-2020",
    no_args_is_help=True,
)
app.add_typer(commands, name="fleet")


@commands.command("import")
@answers_errors
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="FLASH's or FedScale's JSON, CSV or Parquet tables.")
    ],
    out: Annotated[Path, typer.Option(help="The fleet to write, a .jsonl file.")] = Path("fleet.jsonl"),
    devices: Annotated[int, typer.Option(min=0, help="How many devices to write; 0: as many as were measured.")] = 0,
    samples_per_second: Annotated[
        float, typer.Option(min=1e-30, help="The median device's speed, if the files have none or relative ones.")
    ] = 100.0,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the draws that join files of different devices.")] = 0,
    drop_absent: Annotated[bool, typer.Option("--drop-absent", help="Leave out devices never available.")] = False,
    at_random: Annotated[
        bool, typer.Option("--at-random", help="Join files at random, even if they name the same devices.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read speeds, networks and availability of measured devices, and write a fleet.

    Example: fedprox fleet import state_traces.json speed_distri.json --out flash.jsonl
    """
    from fedprox.core.errors import ConfigError
    from fedprox.core.files import write_atomically
    from fedprox.participation.fleets import import_fleet

    if out.suffix != ".jsonl":
        raise ConfigError(f"`--out` must be a file that ends in .jsonl; got {out}")
    if out.exists():
        raise ConfigError(f"`--out` must be a new file; {out} exists")
    fleet = import_fleet(
        files,
        devices=devices,
        samples_per_second=samples_per_second,
        seed=seed,
        drop_absent=drop_absent,
        at_random=at_random,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, fleet.text().encode())
    if as_json:
        say_json({"out": str(out), "devices": len(fleet.lines), "notes": fleet.notes})
        return
    for note in fleet.notes:
        typer.echo(note)
    typer.echo(f"{len(fleet.lines)} devices: {out}")
    typer.echo(f"use it:  fedprox run CONFIG -s systems.model=clock -s systems.profile={out}")


@commands.command()
@answers_errors
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="equal, phones, phones-2020, a profile or a fleet file.")],
    devices: Annotated[int, typer.Option(min=1, max=100_000, help="How many devices to look at.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the draw of devices.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture to write; by default NAME-fleet.png here.")] = None,
    as_json: Json = False,
) -> None:
    """Show the speeds and networks of a fleet, and how many devices are available over two days.

    Example: fedprox fleet show phones-2020 --out phones.png
    """
    from fedprox.participation.clock import FleetDevices, ProfileDevices, is_fleet_file, read_profile, read_trace
    from fedprox.report.fleet_picture import examine_fleet, plot_fleet
    from fedprox.report.plot import save

    origin = licence = ""
    source: FleetDevices | ProfileDevices
    if is_fleet_file(name):
        source = FleetDevices(read_trace(name, None, "NAME"), seed)
    else:
        profile = read_profile(name)
        origin, licence = profile.origin, profile.licence
        source = ProfileDevices(profile, seed)
    view = examine_fleet(source, devices)
    file = Path(name)
    stem = file.stem if file.suffix in (".toml", ".jsonl") else file.name
    picture = save(plot_fleet(view, f"{stem}: {devices} devices"), out or Path(f"{stem}-fleet.png"))
    rows = list(view.rows())
    if as_json:
        say_json({"fleet": name, "origin": origin, "licence": licence, "picture": str(picture), "classes": rows})
        return
    _print(rows)
    typer.echo(f"\norigin: {origin or 'not stated'}" + (f"\nlicence: {licence}" if licence else ""))
    typer.echo(f"picture: {picture}")


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class")
    headings = ("devices", "samples/s", "down kbit/s", "up kbit/s", "there", "0-6 h", "12-18 h", "never")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        ranges = (row[f"{key}_per_second"] for key in ("samples", "download_kbit", "upload_kbit"))
        shares = (row[key] for key in ("there", "there_at_night", "there_in_the_afternoon", "never_there"))
        table.add_row(
            row["class"],
            str(row["devices"]),
            *(f"{low:,.0f} {middle:,.0f} {high:,.0f}" for low, middle, high in ranges),
            *(f"{share:.1%}" for share in shares),
        )
    output_console().print(table)
    typer.echo("speeds and networks: the slowest tenth, the median, the fastest tenth; never: not once in two days")
