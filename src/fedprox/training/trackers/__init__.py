"""Experiment trackers: the same metrics in TensorBoard, MLflow or Weights & Biases.

A tracker is a callback that is called after every round, and is closed at the end. Each needs its own package, which is
imported only when the tracker is used. All of them write files; none needs an account or a network.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedprox.config import Config
from fedprox.core.errors import ConfigError, nearest
from fedprox.core.extras import needs_extra
from fedprox.training.result import Progress

__all__ = ["NAMES", "Tracker", "build", "numbers"]

NAMES = ("mlflow", "tensorboard", "wandb")


class Tracker(Protocol):
    """A tracker of a run. Nothing may be written before the first call: until then the run may be refused."""

    def __call__(self, progress: Progress) -> None:
        """Record a round."""

    def close(self, summary: Mapping[str, Any]) -> None:
        """Record the end of the run; after an error the summary is `{"ended": "failed"}`."""


def build(name: str, folder: Path, config: Config) -> Tracker:
    """Return the tracker `name` for the run in `folder`."""
    if name not in NAMES:
        raise ConfigError(f"`track` must be one of {', '.join(NAMES)}; got {name!r}{nearest(name, NAMES)}")
    with needs_extra(name, f"tracking with {name}"):
        module = importlib.import_module(f"fedprox.training.trackers.{name}_tracker")
    tracker: Tracker = module.tracker(folder, config)
    return tracker


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what can be drawn: the finite numbers of a record, but not the round.

    >>> numbers({"round": 3, "train_loss": 0.5, "test_accuracy": None})
    {'train_loss': 0.5}
    """
    return {name: float(value) for name, value in metrics.items() if name != "round" and value is not None}
