"""The experiment in one line: data, devices per round, epochs, stragglers and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedprox.config import Config
from fedprox.runs.reader import SavedRun
from fedprox.runs.replaced import part_label
from fedprox.runs.seed_groups import Group, setting_text

__all__ = ["experiment_line"]


def experiment_line(groups: Sequence[Group]) -> str:
    """Return what the runs of a report have in common, with all values where they differ.

    The parts are the data, N where it is known, K devices per round, E epochs, the share of stragglers, and seeds.
    """
    runs = [run for group in groups for run in group.runs]
    configs = [run.config for run in runs]
    systems = [run for run in runs if "systems" in run.replaced]
    known = {len(run.evaluation) for run in runs if len(run.evaluation)}
    parts = [
        "data: " + _values(map(_data, runs)),
        *([f"N = {_values(sorted(known))} devices"] if known else []),
        f"K = {_values(config.devices.per_round for config in configs)} per round",
        f"E = {_values(config.solver.epochs for config in configs)} epochs",
        _systems([run.config for run in runs if run not in systems], systems),
        _seeds(sorted({run.seed for run in runs})),
    ]
    return "; ".join(parts)


def _data(run: SavedRun) -> str:
    if "data" in run.replaced:
        return part_label(run.replaced["data"])
    data = run.config.data
    if data.name == "synthetic":
        return f"Synthetic({setting_text(data.alpha)}, {setting_text(data.beta)})"
    return data.name + (f" {data.path}" if data.path else "")


def _systems(configs: Sequence[Config], given: Sequence[SavedRun]) -> str:
    """Say how much work devices do: as the configs have it, and as objects from Python decide it."""
    own = [_values(part_label(run.replaced["systems"]) for run in given)] if given else []
    return ", ".join([_named_systems(configs), *own] if configs else own)


def _named_systems(configs: Sequence[Config]) -> str:
    if any(config.systems.model == "clock" for config in configs):
        return f"simulated clock, deadline {_values(config.systems.deadline for config in configs)}"
    return f"{_values(f'{100 * config.devices.stragglers:g}%' for config in configs)} stragglers"


def _seeds(seeds: Sequence[int]) -> str:
    """Return a list of seeds as text.

    >>> _seeds([0, 1, 2]), _seeds([3]), _seeds([0, 1])
    ('seeds 0 to 2', 'seed 3', 'seeds 0, 1')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return "seeds " + ", ".join(map(str, seeds))


def _values(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(setting_text(value) for value in values))
