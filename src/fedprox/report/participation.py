"""Participation: a figure of rounds and devices, one point for each device of a round.

Only devices that were chosen are shown, so that the figure takes rounds x K points, however large the population.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedprox.runs.history import History
from fedprox.runs.seed_groups import Group

__all__ = ["participation"]

_MOST_POINTS = 60_000  # over all runs of a report


def participation(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return, for each run, lists of round, device, epochs done, steps done, and whether it was kept.

    Where the runs have too many rounds for one page, every second, third, ... round is taken; `every` says which.
    """
    runs = [(group, run, run.devices) for group in groups for run in group.runs]
    points = sum(len(row["device"]) for _, _, devices in runs for row in devices)
    every = max(1, -(-points // _MOST_POINTS))
    return [
        {
            "label": group.label + (f", seed {run.seed}" if len(group.runs) > 1 else ""),
            "epochs": run.config.solver.epochs,
            "every": every,
            **_points(devices, every),
        }
        for group, run, devices in runs
    ]


def _points(devices: History, every: int) -> dict[str, list[Any]]:
    points: dict[str, list[Any]] = {"round": [], "device": [], "work": [], "steps": [], "fate": []}
    for row in devices:
        if row["round"] % every:
            continue
        for device, epochs, budget, steps, straggler, kept in zip(
            *(row[name] for name in ("device", "epochs", "budget", "steps", "straggler", "kept")), strict=True
        ):
            points["round"].append(row["round"])
            points["device"].append(device)
            points["work"].append(round(epochs * steps / budget, 2) if budget else 0)
            points["steps"].append(steps)
            points["fate"].append(2 if not kept else int(bool(straggler)))
    return points
