"""The command line: one file per command, all on one application."""

from __future__ import annotations

from fedprox.cli import compare, report, run, sweep, tune
from fedprox.cli.app import app

__all__ = ["app", "compare", "main", "report", "run", "sweep", "tune"]


def main() -> None:
    """Run the command line."""
    app()
