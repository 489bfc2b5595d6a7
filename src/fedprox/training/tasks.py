"""The tasks of a round: its plan as an engine takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedprox.engines import Task, TaskList
from fedprox.training.plan import RoundPlan

__all__ = ["build_tasks", "gradient_tasks"]


def build_tasks(plan: RoundPlan, samples: int, states: Mapping[int, Any]) -> TaskList:
    """Return the tasks of a round; the devices that are kept are asked.

    Args:
      samples: n, the training samples of all devices.
      states: what devices remember, for those that have taken part.
    """
    cohort = plan.cohort
    masses = np.minimum(cohort.samples / samples, plan.max_weight)
    return TaskList(plan.kept, cohort.devices, plan.work.budget, plan.weights, masses, states)


def gradient_tasks(plan: RoundPlan, tasks: Sequence[Task | None], samples: int) -> Sequence[Task | None]:
    """Return the devices that are asked for a gradient at w^t: the round's own devices, or those of the second draw."""
    if plan.second is None:
        return tasks
    cohort, weights = plan.second.cohort, plan.second.weights.tolist()
    return [
        Task(device, own, weight, own / samples) if weight > 0 else None
        for device, own, weight in zip(cohort.devices.tolist(), cohort.samples.tolist(), weights, strict=True)
    ]
