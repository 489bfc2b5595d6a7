"""Fleets from published files: reading them, joining them, and writing one file of devices."""

from __future__ import annotations

from fedprox.participation.fleets.importing import ImportedFleet, import_fleet
from fedprox.participation.fleets.measured import Measured

__all__ = ["ImportedFleet", "Measured", "import_fleet"]
