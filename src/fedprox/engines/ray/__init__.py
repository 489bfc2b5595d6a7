"""Simulation beyond one machine, on a Ray cluster (`fedprox[ray]`); Ray itself is imported when a run uses it."""

from __future__ import annotations

from fedprox.engines.ray.cluster import Cluster
from fedprox.engines.ray.engine import RayEngine

__all__ = ["Cluster", "RayEngine"]
