"""The command line: one file per command, all on one application."""

from __future__ import annotations

import io
import sys

from fedprox.cli import (
    calibrate,
    compare,
    config,
    conformance,
    data,
    deploy,
    doctor,
    evaluate,
    export,
    fleet,
    paper,
    report,
    run,
    sweep,
    theory,
    tune,
    watch,
)
from fedprox.cli.app import app, say_system_error
from fedprox.cli.completion import bash_words

__all__ = [
    "app",
    "calibrate",
    "compare",
    "config",
    "conformance",
    "data",
    "deploy",
    "doctor",
    "evaluate",
    "export",
    "fleet",
    "main",
    "paper",
    "report",
    "run",
    "sweep",
    "theory",
    "tune",
    "watch",
]


def main() -> None:
    """Run the command line; what a terminal cannot show, such as a file name that is not UTF-8, is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with bash_words():
            app(prog_name="fedprox")
    except OSError as error:  # outside of commands: help that cannot be printed
        say_system_error(error)
        sys.exit(2)
