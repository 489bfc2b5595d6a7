"""Runs that differ only in their seed form one group: they are shown as one curve, a mean with a band."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.runs.reader import SavedRun
from fedprox.runs.replaced import PLACES, Replaced, part_label

__all__ = ["Band", "Group", "differing", "flat_settings", "group_runs", "labels", "setting_text"]

_STILL_USED = {  # settings of a section whose part was given from Python
    "method": ("method.mu",),
    "model": ("model.init",),
    "solver": ("solver.learning_rate", "solver.batch_size", "solver.epochs", "solver.gamma"),
}
_WHOLE_SECTIONS = ("data", "model", "method", "solver", "systems", "merge")  # others replace one key of theirs
_NOT_THE_EXPERIMENT = ("seed", "engine.", "checkpoint.")  # what does not make it another experiment


@dataclass(frozen=True)
class Band:
    """A quantity over the rounds: mean and standard deviation over seeds, NaN where a seed has no finite value."""

    rounds: list[int]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64] | None  # None for a single seed


@dataclass(frozen=True)
class Group:
    """Runs of one experiment, one per seed."""

    label: str
    runs: tuple[SavedRun, ...]

    def band(self, name: str) -> Band | None:
        """Return a quantity over the rounds that all runs have measured, or None where no run has it."""
        tables = [{row["round"]: row[name] for row in run.history if name in row} for run in self.runs]
        rounds = sorted(set.intersection(*(set(table) for table in tables)))
        values = np.array([[_number(table[round]) for round in rounds] for table in tables])  # (seeds, rounds)
        if not rounds or np.isnan(values).all():
            return None
        deviation = values.std(axis=0, ddof=1) if len(tables) > 1 else None
        return Band(rounds, values.mean(axis=0), deviation)

    def finals(self, name: str) -> list[float]:
        """Return the last measured value of each run, NaN where there is none or it is not finite."""
        return [_number(run.last.get(name)) for run in self.runs]

    def final(self, name: str) -> tuple[float, float | None]:
        """Return mean and deviation over seeds of the last values; NaN where a seed has no finite one."""
        values = np.array(self.finals(name))
        return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None


def group_runs(runs: Iterable[SavedRun]) -> list[Group]:
    """Group runs that differ only in their seed; a second run of the same seed starts another group."""
    gathered: dict[tuple[str, int], list[SavedRun]] = {}
    for run in runs:
        experiment, copy = json.dumps(_experiment(run.config, run.replaced)), 0
        while any(run.seed == other.seed for other in gathered.get((experiment, copy), [])):
            copy += 1
        gathered.setdefault((experiment, copy), []).append(run)
    first = [group[0] for group in gathered.values()]
    names = labels([run.config for run in first], [run.replaced for run in first])
    names = _told_apart(names, list(gathered.values()))
    return [Group(name, tuple(group)) for name, group in zip(names, gathered.values(), strict=True)]


def labels(configs: Sequence[Config], replaced: Sequence[Replaced] | None = None) -> list[str]:
    """Name each config by its method and by the settings in which it differs from another one.

    `replaced` has the parts that were given from Python in place of what each config names.

    >>> labels([Config.from_dict({"method": {"mu": mu}}) for mu in (0.0, 1.0)])
    ['fedprox (mu=0)', 'fedprox (mu=1)']
    """
    own = replaced if replaced is not None else [{} for _ in configs]
    flat = [_experiment(config, parts) for config, parts in zip(configs, own, strict=True)]
    different = [
        key
        for key in differing(flat)
        if key not in ("method.name", "method.mu")
        and len({json.dumps(settings[key]) for settings in flat if key in settings}) > 1  # among those that have it
    ]
    names: list[str] = []
    for settings in flat:
        shown = ["method.mu"] if "method.mu" in settings else []
        shown += [key for key in different if key in settings]
        parts = [f"{key.removeprefix('method.')}={setting_text(settings[key])}" for key in shown]
        names.append(settings["method.name"] + (f" ({', '.join(parts)})" if parts else ""))
    return names


def _told_apart(names: Sequence[str], groups: Sequence[Sequence[SavedRun]]) -> list[str]:
    """Return the names, with the folder of the runs where several groups have the same name."""
    folders = [Path(os.path.commonpath([os.path.abspath(run.path) for run in group])) for group in groups]
    result = []
    for name, folder in zip(names, folders, strict=True):
        alike = [other for other, its_name in zip(folders, names, strict=True) if its_name == name]
        result.append(f"{name}, {_own_part(folder, alike)}" if len(alike) > 1 else name)
    return result


def _own_part(folder: Path, folders: Sequence[Path]) -> str:
    """Return the part of a folder's path in which it differs from the others, without a common ending."""
    own = folder.relative_to(os.path.commonpath(folders)).parts
    others = [each.parts for each in folders]
    while len(own) > 1 and len({parts[-1] for parts in others}) == 1:
        own, others = own[:-1], [parts[:-1] for parts in others]
    return "/".join(own)


def flat_settings(config: Config, replaced: Replaced | None = None) -> dict[str, Any]:
    """Return the resolved settings by dotted key, with parts from Python in place of what the config names."""
    flat: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        flat |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
    for part, record in (replaced or {}).items():
        place = PLACES[part].key if part in PLACES else f"{part}.name"
        kept = _STILL_USED.get(part, ())
        if part in _WHOLE_SECTIONS:
            flat = {key: item for key, item in flat.items() if key.split(".")[0] != part or key in kept}
        named = part_label(record)
        flat[place] = [*flat.get(place, []), named] if part == "metrics" else named
    return flat


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same everywhere."""
    keys = dict.fromkeys(key for flat in settings for key in flat)
    return [key for key in keys if len({json.dumps(flat.get(key)) for flat in settings}) > 1]


def setting_text(value: Any) -> str:
    """Return a setting as short text: 1.0 as 1, text without quotes."""
    return format(value, "g") if isinstance(value, float) else str(value)


def _experiment(config: Config, replaced: Replaced) -> dict[str, Any]:
    flat = flat_settings(config, replaced)
    return {key: value for key, value in flat.items() if not key.startswith(_NOT_THE_EXPERIMENT)}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
