"""What the server knows about personal parameters: the name under which each device keeps the current ones."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from fedprox.deploy.messages import PersonalVersion

__all__ = ["PersonalVersions"]


class PersonalVersions:
    """The versions of all devices; part of the server's checkpoint."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(16)
        self._merged: dict[int, str] = {}
        self._written: dict[int, str] = {}  # by the last work of a device, which may not be merged

    def to_read(self, device: int) -> PersonalVersion:
        """Return which version a device is to use, and that it is to write none."""
        return PersonalVersion(self._run, self._merged.get(device, ""))

    def to_train(self, device: int, round: int) -> PersonalVersion:
        """Return which version a device is to start from, and a new one that it is to write."""
        self._written[device] = f"{round}-{secrets.token_hex(8)}"
        return PersonalVersion(self._run, self._merged.get(device, ""), self._written[device])

    def merge(self, device: int) -> None:
        """Let the version count that the device has written last: its reply is merged."""
        self._merged[device] = self._written[device]

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        return {"run": self._run, "merged": {str(device): version for device, version in self._merged.items()}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore what a checkpoint holds."""
        self._run = values["run"]
        self._merged = {int(device): version for device, version in values["merged"].items()}
