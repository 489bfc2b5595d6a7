"""The state of a run between two rounds: all that the next round depends on, and all that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedprox.core.trees import Tree, flatten_names, unflatten_names
from fedprox.methods import Method
from fedprox.methods.mu import MuController, restore
from fedprox.participation.known_devices import KnownDevice, read_known, write_known
from fedprox.runs.checkpoint import by_owner

__all__ = ["State"]

Tensors = dict[str, np.ndarray[Any, Any]]


@dataclass
class State:
    """The model, what server and devices remember, and mu, after `round` rounds.

    Devices are remembered only once they have taken part, so that a million idle ones cost nothing. What they remember
    is held as the engine gave it, which may be a reference to where it is.
    """

    params: Tree
    server: Tree
    controller: MuController
    devices: dict[int, Any] = field(default_factory=dict)
    round: int = 0
    bytes: int = 0  # sent so far, down and up
    simulated_seconds: float = 0.0  # what the clock shows, where there is one
    known: dict[int, KnownDevice] = field(default_factory=dict)  # of the devices, for users' samplers

    def tensors(self, devices: Mapping[int, Tree]) -> Tensors:
        """Return all arrays by name; `devices` is what devices remember, as trees."""
        named = _prefixed("params", self.params) | _prefixed("server", self.server)
        for device, remembered in devices.items():
            named |= _prefixed(f"device.{device}", remembered)
        return named

    def values(self) -> dict[str, Any]:
        """Return the rest: plain values."""
        values = {"mu": self.controller.state(), "bytes": self.bytes, "simulated_seconds": self.simulated_seconds}
        return {**values, "known": write_known(self.known)} if self.known else values

    def go_back(self, round: int, tensors: Mapping[str, Any], values: Mapping[str, Any], method: Method) -> None:
        """Become the state that `tensors` and `values` were taken of."""
        groups = by_owner(tensors)
        self.round = round
        self.params = unflatten_names(groups.pop("params"), like=self.params)
        self.server = unflatten_names(groups.pop("server", {}), like=self.server)
        like = method.start_device(self.params)
        self.devices = {
            int(group.removeprefix("device.")): unflatten_names(named, like=like) for group, named in groups.items()
        }
        self.controller = restore(self.controller, dict(values["mu"]))
        self.bytes, self.simulated_seconds = values["bytes"], values["simulated_seconds"]
        self.known = read_known(values.get("known", {}))


def _prefixed(prefix: str, tree: Tree) -> Tensors:
    return {f"{prefix}.{name}": array for name, array in flatten_names(tree).items()}
