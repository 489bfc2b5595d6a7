"""The data of N devices: one flat, ragged layout, in memory or memory-mapped on disk, and ways to partition data."""

from __future__ import annotations

from fedprox.population.population import Population, Samples, checked_rows, split

__all__ = ["Population", "Samples", "checked_rows", "split"]
