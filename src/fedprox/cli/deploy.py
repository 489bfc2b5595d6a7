"""`fedprox deploy`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedprox.cli.app import Json, Overrides, answers_errors, app, say_json

__all__ = ["Framework", "init", "keys", "trial"]

commands = typer.Typer(
    help="Run on real devices, through Flower: new app, keys, trial.\n\nExample: fedprox deploy init hospital",
    no_args_is_help=True,
)
app.add_typer(commands, name="deploy")


class Framework(StrEnum):
    """What a device trains with."""

    JAX = "jax"
    TORCH = "torch"


@commands.command()
@answers_errors
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the new app.")],
    framework: Annotated[Framework, typer.Option(help="What the devices train with.")] = Framework.JAX,
    devices: Annotated[int, typer.Option(min=1, max=10**9, help="How many devices there are.")] = 3,
) -> None:
    """Write a Flower app that is ready to run: settings, task, client app, server app and a README.

    Example: fedprox deploy init hospital --devices 10
    """
    import shlex

    from fedprox.deploy.new_project import write_project

    for path in write_project(folder, framework=framework.value, devices=devices):
        typer.echo(str(path))
    typer.echo(f"\nTry it on this machine: cd {shlex.quote(str(folder))} && fedprox deploy trial . --out runs/trial")


@commands.command()
@answers_errors
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for certificates and keys.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes get a key.")] = 3,
    host: Annotated[
        list[str], typer.Option("--host", help="A name or address under which nodes reach the server; repeatable.")
    ] = ["localhost", "127.0.0.1"],  # noqa: B006 - Typer reads the default and never changes it
    days: Annotated[int, typer.Option(min=1, help="For how many days the certificates are valid.")] = 365,
) -> None:
    """Make what a secure federation needs: an authority, the server's certificate, and a key for each node.

    Example: fedprox deploy keys keys --nodes 10 --host fl.example.org
    """
    from fedprox.deploy.keys import write_keys

    write_keys(folder, nodes=nodes, hosts=host, days=days)
    typer.echo(f"{folder}: ca.crt goes to every node, server.pem and server.key to the server, nodeK to node K")


@commands.command()
@answers_errors
def trial(
    project: Annotated[Path, typer.Argument(metavar="APP", help="The folder of the app.")],
    out: Annotated[Path, typer.Option(help="The run folder.")],
    set_: Overrides = [],  # noqa: B006 - Typer reads the default and never changes it
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Run without TLS and keys.")] = False,
    as_json: Json = False,
) -> None:
    """Run an app on this machine: a SuperLink and a SuperNode for each device, stopped again at the end.

    Example: fedprox deploy trial hospital --out runs/trial -s rounds=3
    """
    import shlex

    from fedprox.config.part_search import add_folders
    from fedprox.core.signals import exits_on_termination
    from fedprox.deploy.settings import check_deployable, project_settings, run_settings
    from fedprox.deploy.trial import Trial
    from fedprox.deploy.trial_folder import trial_folder
    from fedprox.runs.folder import check_usable, read_summary
    from fedprox.runs.identity import read_config
    from fedprox.runs.reader import load_run
    from fedprox.runs.summary_text import start_lines, summary_lines

    overrides = shlex.join(set_)
    add_folders([str(project.absolute())])  # where Flower finds the parts that the settings name
    config = run_settings(project_settings(project), {"set": overrides})
    check_deployable(config)
    recorded = read_config(out)[1] if resume and (out / "config.toml").exists() else {}
    check_usable(out, config, resume=resume, replaced=recorded)  # the app gives its objects again
    with (
        exits_on_termination(),
        trial_folder() as place,
        Trial(place, config.deploy.devices, secure=not insecure) as federation,
    ):
        if not as_json:
            typer.echo(
                f"{config.deploy.devices} nodes are connected to {federation.address}; logs in {place}", err=True
            )
        try:
            federation.run(project, out, {"set": overrides, "resume": resume})
        finally:  # the errors of nodes, also of those whose work could be left out
            for name, error in federation.python_errors().items():
                typer.echo(f"{name}: {error}", err=True)
    summary = read_summary(out) or {}
    if as_json:
        say_json({"out": str(out), "summary": summary})
    else:
        for text in (*start_lines(load_run(out).history), *summary_lines(summary), f"run folder: {out}"):
            typer.echo(text)
