"""The state of a run between two rounds: all that the next round depends on, and all that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedprox.core.trees import Tree, flatten_names, unflatten_names
from fedprox.methods import Method
from fedprox.methods.custom_checks import check_starts
from fedprox.methods.mu import MuController, restore, saved_state
from fedprox.participation.known_devices import KnownDevice, read_known, write_known
from fedprox.runs.checkpoint import by_owner

__all__ = ["GivenModel", "State", "UnderWay"]

Tensors = dict[str, np.ndarray[Any, Any]]


class GivenModel(NamedTuple):
    """A version of the model as devices that are still at work were given it."""

    params: Tree
    sent: Tree  # what the method added
    mu: float


class UnderWay(Protocol):
    """Work in progress between two rounds."""

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in plain JSON values."""

    def restore(self, values: dict[str, Any], *, now: float, version: int) -> None:
        """Restore what `values` returned, at a simulated moment and with a version of the model."""


@dataclass
class State:
    """The model, what server and devices remember, and mu, after `round` rounds.

    Devices are remembered only once they have taken part, so that a million idle ones cost nothing. What they remember
    is held as the engine returned it, possibly as a reference; with a run folder, beyond a number that fits
    into memory, it is on disk (`fedprox.runs.device_store`).

    A server that merges replies as they arrive has devices at work between two rounds: its time line, and each version
    of the model that some of them were given.
    """

    params: Tree
    server: Tree
    controller: MuController
    devices: MutableMapping[int, Any] = field(default_factory=dict)
    round: int = 0
    bytes: int = 0  # sent so far, down and up
    simulated_seconds: float = 0.0  # what the clock shows, where there is one
    wasted_seconds: float = 0.0  # of devices whose work was not merged
    timeline: UnderWay | None = None
    given: dict[int, GivenModel] = field(default_factory=dict)
    known: dict[int, KnownDevice] = field(default_factory=dict)  # of the devices, for users' samplers

    @classmethod
    def start(cls, params: Tree, method: Method, controller: MuController) -> State:
        """Return the state before the first round."""
        check_starts(method, params)
        return cls(params, method.start(params), controller)

    def tensors(self) -> Tensors:
        """Return the arrays of model, server and given versions by name."""
        named = _prefixed("params", self.params) | _prefixed("server", self.server)
        for version, model in self.given.items():
            named |= _prefixed(f"version.{version}", {"params": model.params, "sent": model.sent})
        return named

    def values(self) -> dict[str, Any]:
        """Return the rest: plain values."""
        values = {"mu": saved_state(self.controller), "bytes": self.bytes, "simulated_seconds": self.simulated_seconds}
        if self.wasted_seconds:
            values["wasted_seconds"] = self.wasted_seconds
        if self.timeline is not None:
            values["timeline"] = self.timeline.values()
            values["given_mu"] = {str(version): model.mu for version, model in self.given.items()}
        return {**values, "known": write_known(self.known)} if self.known else values

    def go_back(self, round: int, tensors: Mapping[str, Any], values: Mapping[str, Any], method: Method) -> None:
        """Restore the state that `tensors` and `values` were taken from, except what devices remember."""
        groups = by_owner(tensors)
        self.round = round
        self.params = unflatten_names(groups.pop("params"), like=self.params)
        self.server = unflatten_names(groups.pop("server", {}), like=self.server)
        self.given = {}
        for version, used_mu in values.get("given_mu", {}).items():
            like = {"params": self.params, "sent": method.send(self.server, None)}
            model = unflatten_names(groups.pop(f"version.{version}"), like=like)
            self.given[int(version)] = GivenModel(**model, mu=used_mu)
        self.controller = restore(self.controller, dict(values["mu"]))
        self.bytes, self.simulated_seconds = values["bytes"], values["simulated_seconds"]
        self.wasted_seconds = values.get("wasted_seconds", 0.0)
        if self.timeline is not None:
            self.timeline.restore(values["timeline"], now=self.simulated_seconds, version=round)
        self.known = read_known(values.get("known", {}))


def _prefixed(prefix: str, tree: Tree) -> Tensors:
    return {f"{prefix}.{name}": array for name, array in flatten_names(tree).items()}
