"""`fedprox config`: what settings there are, and what a config resolves to."""

from __future__ import annotations

from typing import Annotated

import typer

from fedprox.cli.app import ConfigName, Overrides, answers_errors, app
from fedprox.cli.completion import complete_key

__all__ = ["commands"]

commands = typer.Typer(
    help="Settings: show a config, explain a key, start a new file.\n\nExample: fedprox config explain method.mu",
    no_args_is_help=True,
)
app.add_typer(commands, name="config")


@commands.command()
@answers_errors
def show(
    config: ConfigName,
    set_: Overrides = [],  # noqa: B006 - Typer reads the default and never changes it
) -> None:
    """Print a config with all its defaults, as a run would use it.

    Example: fedprox config show synthetic-1-1 -s method.mu=0.1
    """
    from fedprox.config import Config, with_overrides
    from fedprox.config.recipes import load_settings

    typer.echo(Config.from_dict(with_overrides(load_settings(config), set_)).to_toml(), nl=False)


@commands.command()
@answers_errors
def explain(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="A key such as method.mu, or a section.", autocompletion=complete_key),
    ],
) -> None:
    """Show what a setting means, its rule and its default.

    Example: fedprox config explain solver.gamma
    """
    from fedprox.config.settings_list import find_setting

    for each in find_setting(key):
        typer.echo(f"{each.key}: {each.meaning}" if each.meaning else each.key)
        typer.echo(f"  must be {each.rule}; default {each.default or 'none'}")
        if each.only:
            typer.echo(f"  only with {each.only}")


@commands.command()
@answers_errors
def new() -> None:
    """Print a config file with every setting, its default and a comment.

    Example: fedprox config new > my.toml
    """
    from fedprox.config.settings_list import commented_toml

    typer.echo(commented_toml(), nl=False)
