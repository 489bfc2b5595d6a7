"""Objects given from Python to many runs: what a run folder records of them, to continue only with the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.config import Config
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.runs.identity import check_continues
from fedprox.runs.replaced import by_part, describe_parts

__all__ = ["check_job_continues", "named_objects"]

_NOT_PARTS = ("callbacks",)  # they observe a run, and replace nothing in it


def named_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects that are not None; refuse a name that is not an argument of `train`."""
    given = {name: value for name, value in objects.items() if value is not None}
    by_part(**{name: value for name, value in given.items() if name not in _NOT_PARTS})
    return given


def check_job_continues(folder: Path, config: Config, objects: Mapping[str, Any]) -> None:
    """Refuse to continue a run with another config or with other objects than its folder records."""
    if not objects or not folder.exists():
        check_continues(folder, config)
        return
    model = objects.get("model")
    params = initial_params(config, model) if isinstance(model, Model) else None
    named = by_part(**{name: value for name, value in objects.items() if name not in _NOT_PARTS})
    check_continues(folder, config, describe_parts(named, params))
