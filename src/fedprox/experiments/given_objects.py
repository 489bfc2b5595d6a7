"""What is given from Python to many runs: counts, and objects, of which run folders record what resuming needs."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from fedprox.config import Config
from fedprox.core.errors import ConfigError, short
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.runs.identity import check_continues
from fedprox.runs.replaced import by_part, describe_parts

__all__ = ["check_counts", "check_job_continues", "named_objects"]

_NOT_PARTS = ("callbacks",)  # they observe a run, and replace nothing in it


def check_counts(**counts: tuple[int, int]) -> None:
    """Refuse counts, each given with the least value it may have, that are not integers or are too small.

    >>> check_counts(seeds=(0, 1))
    Traceback (most recent call last):
    fedprox.core.errors.ConfigError: `seeds` must be an integer >= 1; got 0
    """
    for name, (count, least) in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral) or count < least:
            raise ConfigError(f"`{name}` must be an integer >= {least}; got {short(count)}")


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
