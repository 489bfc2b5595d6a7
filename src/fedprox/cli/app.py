"""The command line's application, and what its commands share.

Only Typer is imported here; what a command needs is imported when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedprox import __version__
from fedprox.cli.completion import complete_config, complete_setting
from fedprox.core.errors import FedProxError, OwnCodeError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "ConfigName",
    "Json",
    "Overrides",
    "answers_errors",
    "app",
    "error_console",
    "next_folder",
    "output_console",
    "say_json",
    "say_system_error",
]

app = typer.Typer(
    name="fedprox",
    help="Federated optimisation in heterogeneous networks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


ConfigName = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A .toml file, or a recipe such as synthetic-1-1.", autocompletion=complete_config
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "-s",
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, e.g. method.mu=0.1; repeatable.",
        autocompletion=complete_setting,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


def answers_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Print a user's error or a warning as one sentence; an error ends the command with its exit code."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        from fedprox.config.part_search import allow_current_folder

        warnings.showwarning = _show_warning
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its warnings about a home folder that is not writable
        allow_current_folder()
        try:
            command(*args, **kwargs)
        except FedProxError as error:
            if isinstance(error, OwnCodeError) and error.__cause__ is not None:
                from fedprox.core.own_code import own_traceback

                typer.echo(own_traceback(error.__cause__), err=True, nl=False)
            typer.echo(f"fedprox: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            say_system_error(error)
            raise typer.Exit(2) from None
        except MemoryError:
            typer.echo("fedprox: this machine does not have enough memory for that", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("fedprox: interrupted", err=True)
            raise typer.Exit(130) from None

    return wrapped


def say_system_error(error: OSError) -> None:
    """Print what the system refused: a file, a folder, or more output (a full disk behind standard output).

    A reader that has seen enough, such as `head`, is no error to speak of.
    """
    place = f"{error.filename}: " if error.filename else ""
    text = f"fedprox: {place}{error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EPIPE) and not place:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python has nothing left to print at its end
        if error.errno == errno.EPIPE:
            return
        text = "fedprox: standard output cannot be written: no space left on device"
    with contextlib.suppress(OSError):
        typer.echo(text.encode("utf-8", "backslashreplace").decode(), err=True)


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    typer.echo(f"fedprox: warning: {message}", err=True)


def next_folder(name: str) -> Path:
    """Return runs/NAME-1, or the first number that is free."""
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def say_json(record: dict[str, Any]) -> None:
    """Print a record as one line of JSON."""
    from fedprox.core.files import json_line

    typer.echo(json_line(record), nl=False)


def error_console() -> Console:
    """Return the console for progress: standard error, so that results can be piped."""
    from rich.console import Console

    return Console(stderr=True)


def output_console() -> Console:
    """Return the console for results."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(width=width)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"fedprox {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
