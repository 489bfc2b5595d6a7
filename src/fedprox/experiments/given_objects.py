"""Objects given from Python to many runs: what a run folder records of them, to continue only with the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.config import Config
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.runs.identity import check_continues
from fedprox.runs.replaced import describe_parts

__all__ = ["check_job_continues"]

_SECTIONS = {"population": "data", "model": "model", "method": "method", "solver": "solver", "mu_controller": "mu"}


def check_job_continues(folder: Path, config: Config, objects: Mapping[str, Any]) -> None:
    """Refuse to continue a run with another config or with other objects than its folder records."""
    if not objects or not folder.exists():
        check_continues(folder, config)
        return
    model = objects.get("model")
    params = initial_params(config, model) if isinstance(model, Model) else None
    named = {section: objects.get(name) for name, section in _SECTIONS.items()}
    check_continues(folder, config, describe_parts(named, params))
