"""Federated optimisation in heterogeneous networks: FedProx, and what it is compared with.

    import fedprox
    result = fedprox.train("synthetic-1-1", ...)

Names are imported when they are first used, so that `import fedprox` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedprox import conformance as conformance
    from fedprox import theory as theory
    from fedprox.config import Config as Config
    from fedprox.errors import FedProxError as FedProxError
    from fedprox.history import History as History
    from fedprox.models import Model as Model
    from fedprox.population import Population as Population
    from fedprox.result import Progress as Progress
    from fedprox.result import Result as Result
    from fedprox.saved import SavedRun as SavedRun
    from fedprox.saved import load_run as load_run
    from fedprox.training import train as train

_HOME = {
    "Config": "fedprox.config",
    "FedProxError": "fedprox.errors",
    "History": "fedprox.history",
    "Model": "fedprox.models",
    "Population": "fedprox.population",
    "Progress": "fedprox.result",
    "Result": "fedprox.result",
    "SavedRun": "fedprox.saved",
    "load_run": "fedprox.saved",
    "train": "fedprox.training",
}

_PACKAGES = ("adapters", "conformance", "models", "solvers", "theory")

__all__ = ["__version__", *_HOME, *_PACKAGES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"fedprox.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fedprox' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
