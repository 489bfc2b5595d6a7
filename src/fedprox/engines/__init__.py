"""Engines: where the devices of a round do their work."""

from __future__ import annotations

from fedprox.engines.device import Answer, Broadcast, DeviceSide, Task
from fedprox.engines.local import LocalEngine, RoundAnswer

__all__ = ["Answer", "Broadcast", "DeviceSide", "LocalEngine", "RoundAnswer", "Task"]
