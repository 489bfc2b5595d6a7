"""Engines: where the devices of a round do their work."""

from __future__ import annotations

from fedprox.engines.blueprint import Blueprint, device_side
from fedprox.engines.device import Answer, Broadcast, DeviceSide, Task
from fedprox.engines.local import LocalEngine
from fedprox.engines.round_answer import Engine, RoundAnswer, RoundSum

__all__ = [
    "Answer",
    "Blueprint",
    "Broadcast",
    "DeviceSide",
    "Engine",
    "LocalEngine",
    "RoundAnswer",
    "RoundSum",
    "Task",
    "device_side",
]
