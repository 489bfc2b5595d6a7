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
    from fedprox import adapters as adapters
    from fedprox import conformance as conformance
    from fedprox import data as data
    from fedprox import methods as methods
    from fedprox import models as models
    from fedprox import privacy as privacy
    from fedprox import solvers as solvers
    from fedprox import theory as theory
    from fedprox.config import Config as Config
    from fedprox.core.errors import FedProxError as FedProxError
    from fedprox.experiments.compare import compare as compare
    from fedprox.experiments.sweep import sweep as sweep
    from fedprox.experiments.tune import tune as tune
    from fedprox.methods import Method as Method
    from fedprox.methods import mu as mu
    from fedprox.models import Model as Model
    from fedprox.participation import clock as clock
    from fedprox.population import Population as Population
    from fedprox.population import partition as partition
    from fedprox.runs.history import History as History
    from fedprox.runs.reader import SavedRun as SavedRun
    from fedprox.runs.reader import load_run as load_run
    from fedprox.training.result import Progress as Progress
    from fedprox.training.result import Result as Result
    from fedprox.training.train import train as train

_NAMES = {
    "Config": "fedprox.config",
    "FedProxError": "fedprox.core.errors",
    "History": "fedprox.runs.history",
    "Method": "fedprox.methods",
    "Model": "fedprox.models",
    "Population": "fedprox.population",
    "Progress": "fedprox.training.result",
    "Result": "fedprox.training.result",
    "SavedRun": "fedprox.runs.reader",
    "compare": "fedprox.experiments.compare",
    "load_run": "fedprox.runs.reader",
    "sweep": "fedprox.experiments.sweep",
    "train": "fedprox.training.train",
    "tune": "fedprox.experiments.tune",
}

_MODULES = {
    "adapters": "fedprox.adapters",
    "clock": "fedprox.participation.clock",
    "conformance": "fedprox.conformance",
    "data": "fedprox.data",
    "methods": "fedprox.methods",
    "models": "fedprox.models",
    "mu": "fedprox.methods.mu",
    "partition": "fedprox.population.partition",
    "privacy": "fedprox.privacy",
    "solvers": "fedprox.solvers",
    "theory": "fedprox.theory",
}

__all__ = ["__version__", *_NAMES, *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _NAMES:
        raise AttributeError(f"module 'fedprox' has no attribute {name!r}")
    return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
