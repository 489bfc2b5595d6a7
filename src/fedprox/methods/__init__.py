"""Federated methods, one small file each; they share everything but what their file says."""

from __future__ import annotations

from fedprox.config import MethodConfig
from fedprox.methods.fedavg import fedavg
from fedprox.methods.fedprox import fedprox
from fedprox.methods.method import Method, Reply, Solution

__all__ = ["Method", "Reply", "Solution", "build", "fedavg", "fedprox"]


def build(config: MethodConfig) -> Method:
    """Return the method that the config names."""
    match config.name:
        case "fedavg":
            return fedavg()
        case "fedprox":
            return fedprox()
