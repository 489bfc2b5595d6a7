"""Which devices take part in a round, and with how much work: sampling, stragglers, budgets and the simulated clock."""

from __future__ import annotations

__all__: list[str] = []
