"""The command line: one file per command, all on one application."""

from __future__ import annotations

from fedprox.cli import compare, conformance, data, run, theory
from fedprox.cli.app import app

__all__ = ["app", "compare", "conformance", "data", "main", "run", "theory"]


def main() -> None:
    """Run the command line."""
    app()
