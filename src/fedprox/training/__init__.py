"""The training loop: plan a round, solve locally, merge, measure, record."""

from __future__ import annotations

__all__: list[str] = []
