"""Engines: where the devices of a round do their work."""

from __future__ import annotations

from fedprox.engines.build import Blueprint, device_side
from fedprox.engines.device_side import Broadcast, DeviceReply, DeviceSide, Task, Work, view_device
from fedprox.engines.local import LocalEngine
from fedprox.engines.outcome import Engine, RoundOutcome, RoundRequest, Shares
from fedprox.engines.task_list import TaskList

__all__ = [
    "Blueprint",
    "Broadcast",
    "DeviceReply",
    "DeviceSide",
    "Engine",
    "LocalEngine",
    "RoundOutcome",
    "RoundRequest",
    "Shares",
    "Task",
    "TaskList",
    "Work",
    "device_side",
    "view_device",
]
