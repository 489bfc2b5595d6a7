"""Fleets from published files: what is read, how it is joined, and the file of devices that comes of it."""

from __future__ import annotations

from fedprox.participation.fleets.importing import ImportedFleet, import_fleet
from fedprox.participation.fleets.measured import Measured

__all__ = ["ImportedFleet", "Measured", "import_fleet"]
