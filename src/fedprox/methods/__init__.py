"""Federated methods, one small file each; they share everything but what their file says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedprox.config import METHOD_KEYS, MethodConfig
from fedprox.methods.device_view import DeviceView, Posed
from fedprox.methods.fedadam import fedadam
from fedprox.methods.fedavg import fedavg
from fedprox.methods.fedavgm import fedavgm
from fedprox.methods.feddane import feddane
from fedprox.methods.feddyn import feddyn
from fedprox.methods.fednova import fednova
from fedprox.methods.fedprox import fedprox
from fedprox.methods.fedyogi import fedyogi
from fedprox.methods.method import Method, Reply, Solution
from fedprox.methods.scaffold import scaffold

__all__ = [
    "DeviceView",
    "Method",
    "Posed",
    "Reply",
    "Solution",
    "build",
    "fedadam",
    "fedavg",
    "fedavgm",
    "feddane",
    "feddyn",
    "fednova",
    "fedprox",
    "fedyogi",
    "scaffold",
]

_METHODS: Mapping[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "feddane": feddane,
    "scaffold": scaffold,
    "fednova": fednova,
    "feddyn": feddyn,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
}


def build(config: MethodConfig) -> Method:
    """Return the method that the config names; mu is not among its settings, since it may change over the rounds."""
    own = [key for key in METHOD_KEYS[config.name] if not key.startswith("mu")]
    return _METHODS[config.name](**{key: getattr(config, key) for key in own})
