"""The command line: one file per command, all on one application."""

from __future__ import annotations

from fedprox.cli import compare, doctor, evaluate, export, report, run, sweep, tune, watch
from fedprox.cli.app import app

__all__ = ["app", "compare", "doctor", "evaluate", "export", "main", "report", "run", "sweep", "tune", "watch"]


def main() -> None:
    """Run the command line."""
    app()
