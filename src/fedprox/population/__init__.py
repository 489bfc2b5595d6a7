"""The data of N devices: one flat, ragged layout, in memory or memory-mapped on disk, and ways to partition data."""

from __future__ import annotations

from fedprox.population.population import Population
from fedprox.population.row_checks import checked_rows
from fedprox.population.samples import Samples
from fedprox.population.splitting import split

__all__ = ["Population", "Samples", "checked_rows", "split"]
