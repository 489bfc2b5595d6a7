"""Whose weight in a merge `deploy.max_weight` limits."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedprox.engines import Task

__all__ = ["warn_of_limited"]

_LOG = logging.getLogger("fedprox.deploy")


def warn_of_limited(most: float, round: int, tasks: Sequence[Task | None], weights: NDArray[np.float64]) -> None:
    """Log the devices whose weight `deploy.max_weight`, `most`, limits."""
    limited = [task.device for task, weight in zip(tasks, weights, strict=True) if task and most < 1 and weight >= most]
    if limited:
        _LOG.warning(
            "round %d: the weights of devices %s are limited to %g (`deploy.max_weight`)", round, limited, most
        )
