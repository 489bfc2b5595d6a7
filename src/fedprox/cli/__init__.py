"""The command line: one file per command, all on one application."""

from __future__ import annotations

from fedprox.cli import compare, data, run
from fedprox.cli.app import app

__all__ = ["app", "compare", "data", "main", "run"]


def main() -> None:
    """Run the command line."""
    app()
