"""The paper's table and figures, each from one command (`fedprox paper`), and the verdicts on its claims."""

from __future__ import annotations

__all__: list[str] = []
