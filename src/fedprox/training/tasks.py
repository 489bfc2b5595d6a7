"""The tasks of a round: its plan, device by device, as an engine takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedprox.engines import Task
from fedprox.training.plan import RoundPlan

__all__ = ["build_tasks", "gradient_tasks"]


def build_tasks(plan: RoundPlan, samples: int, states: Mapping[int, Any]) -> list[Task | None]:
    """Return a task for every device that is kept, None for the others.

    Args:
      samples: n, the training samples of all devices.
      states: what devices remember, for those that have taken part.
    """
    tasks: list[Task | None] = []
    for position, keep in enumerate(plan.kept.tolist()):
        device = int(plan.cohort.devices[position])
        task = Task(
            device,
            int(plan.work.budget[position]),
            float(plan.weights[position]),
            int(plan.cohort.samples[position]) / samples,
            states.get(device),
        )
        tasks.append(task if keep else None)
    return tasks


def gradient_tasks(plan: RoundPlan, tasks: Sequence[Task | None], samples: int) -> Sequence[Task | None]:
    """Return who is asked for a gradient at w^t: the round's own devices, or those of the second draw."""
    if plan.second is None:
        return tasks
    cohort, weights = plan.second.cohort, plan.second.weights.tolist()
    return [
        Task(device, own, weight, own / samples) if weight > 0 else None
        for device, own, weight in zip(cohort.devices.tolist(), cohort.samples.tolist(), weights, strict=True)
    ]
