"""Engines: where the subproblems of a round are solved."""

from __future__ import annotations

from fedprox.engines.local import LocalEngine, Resident, Task

__all__ = ["LocalEngine", "Resident", "Task"]
