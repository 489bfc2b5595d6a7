"""Parts of a run that were given as objects from Python, in place of what its config names.

Each is recorded with the folder from its start, under the section that it replaces: its qualified name, and what
distinguishes it from others of that name. For data that is a digest of all samples with their devices, for a model the
shapes of its parameters, for others their plain settings. A run continues only with the recorded parts.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedprox.core.errors import ConfigError, RunFolderError, nearest
from fedprox.core.trees import Tree, flatten_names
from fedprox.models import Model
from fedprox.population import Population
from fedprox.population.folder import read_manifest

__all__ = [
    "PLACES",
    "Replaced",
    "by_part",
    "check_present",
    "check_replaced",
    "describe_data",
    "describe_model",
    "describe_part",
    "describe_parts",
    "part_label",
    "replaced_toml",
]

Replaced = dict[str, dict[str, Any]]
"""Part -> what is recorded of it."""


class _Place(NamedTuple):
    argument: str  # of `train`
    key: str  # of the config, whose place it takes


PLACES: Mapping[str, _Place] = {
    "data": _Place("population", "data.name"),
    "model": _Place("model", "model.name"),
    "method": _Place("method", "method.name"),
    "solver": _Place("solver", "solver.name"),
    "mu": _Place("mu_controller", "method.mu"),
    "sampler": _Place("sampler", "devices.sampling"),
    "systems": _Place("systems", "systems.model"),
    "merge": _Place("merge_rule", "merge.rule"),
    "schedule": _Place("schedule", "solver.schedule"),
    "stopping": _Place("stopping_rule", "stop.rule"),
    "engine": _Place("engine", "engine.name"),
    "metrics": _Place("metrics", "measure.metrics"),
}
"""Every part that can be given from Python."""

_MAY_CHANGE = ("engine",)  # where a run is computed does not change it


def by_part(**arguments: object | None) -> dict[str, object | None]:
    """Return the objects given to `train` by the part that each replaces; refuse an argument that is none of them.

    >>> by_part(population=None, sampler=max)["sampler"]
    <built-in function max>
    """
    known = {place.argument: part for part, place in PLACES.items()}
    for name in arguments:
        if name not in known:
            raise ConfigError(f"objects must be given as one of {', '.join(known)}; got {name!r}{nearest(name, known)}")
    return {known[name]: given for name, given in arguments.items()}


def describe_parts(
    objects: Mapping[str, object | None],
    params: Tree,
    *,
    fingerprint: bool = True,
    recorded: Replaced | None = None,
) -> Replaced:
    """Return what is recorded of each part that is not None; without a folder data need no fingerprint.

    Where the config is that of a run with such parts, `recorded`, they must be the same ones.
    """
    replaced: Replaced = {}
    fingerprint = fingerprint or bool(recorded)
    for part, given in objects.items():
        if isinstance(given, Population):
            replaced[part] = describe_data(given, fingerprint=fingerprint)
        elif isinstance(given, Model):
            replaced[part] = describe_model(given, params)
        elif isinstance(given, Mapping):
            replaced[part] = {"object": "builtins:dict", "entries": _labels(given)}
        elif given is not None:
            replaced[part] = describe_part(given)
    if recorded:
        check_replaced("the run of this config", recorded, replaced)
    return replaced


def describe_part(part: object) -> dict[str, Any]:
    """Return what is recorded of a part: its qualified name, and plain settings that are not defaults.

    >>> from fedprox.methods import fedprox
    >>> describe_part(fedprox())["name"]
    'fedprox'
    """
    if isinstance(part, functools.partial):
        plain = {key: value for key, value in part.keywords.items() if _is_plain(value)}
        return {**describe_part(part.func), **({"settings": plain} if plain else {})}
    named = part if hasattr(part, "__qualname__") else type(part)
    record: dict[str, Any] = {"object": f"{named.__module__}:{named.__qualname__}"}
    if isinstance(name := getattr(part, "name", None), str):
        record["name"] = name
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {field.name: (getattr(part, field.name), field.default) for field in dataclasses.fields(part)}
        plain = {key: value for key, (value, default) in fields.items() if _is_plain(value) and value != default}
        for value, _ in fields.values():
            plain |= _enclosed(value)
        plain.pop("name", None)
        record |= {"settings": plain} if plain else {}
    return record


def describe_data(population: Population, *, fingerprint: bool = True) -> dict[str, Any]:
    """Return what is recorded of data: its size, and a digest of everything in it."""
    record = describe_part(population)
    record.pop("settings", None)
    record |= {"devices": population.devices, "samples": len(population.train) + len(population.test)}
    return {**record, "sha256": _data_digest(population)} if fingerprint else record


def describe_model(model: Model, params: Tree) -> dict[str, Any]:
    """Return what is recorded of a model: its name and the shapes of its parameters."""
    shapes = {name: list(array.shape) for name, array in flatten_names(params).items()}
    record = describe_part(model)
    record.pop("settings", None)
    return {**record, "parameters": shapes}


def check_present(path: str | Path, recorded: Replaced, given: Mapping[str, object | None]) -> None:
    """Refuse to continue without a part that was given from Python."""
    for part, record in recorded.items():
        if given.get(part) is None and part not in _MAY_CHANGE:
            raise RunFolderError(
                f"{path} was made with an object from Python as its {part} ({part_label(record)}); {_how(part)}"
            )


def check_replaced(path: str | Path, recorded: Replaced, given: Replaced) -> None:
    """Refuse to continue a run with parts other than those recorded."""
    check_present(path, recorded, given)
    for part, now in given.items():
        if part in _MAY_CHANGE:
            continue
        if part not in recorded:
            raise RunFolderError(
                f"{path} was made with the {part} that its config names; got {part_label(now)} from Python"
            )
        before = recorded[part]
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != _as_json(now.get(key)):
                raise RunFolderError(
                    f"{path} was made with an object from Python as its {part}, whose {key} is {before.get(key)!r}; "
                    f"got one with {now.get(key)!r}"
                )


def part_label(record: Mapping[str, Any]) -> str:
    """Return a recorded part in a few words, for labels."""
    label = str(record.get("name") or str(record.get("object", "?")).split(":")[-1])
    if isinstance(entries := record.get("entries"), Mapping):
        label = ", ".join(dict.fromkeys(map(str, entries.values())))
    plain = record.get("settings", {})
    settings = ", ".join(f"{key}={value}" for key, value in plain.items()) if isinstance(plain, Mapping) else ""
    if "sha256" in record:
        settings = f"{record.get('devices')} devices, {str(record['sha256'])[:8]}"
    return label + (f" ({settings})" if settings else "")


def replaced_toml(replaced: Replaced) -> str:
    """Return the section of a config file that records parts from Python."""
    lines = ["", "# given as objects from Python, in place of what is named above"] if replaced else []
    for part, record in replaced.items():
        lines += ["", f"[replaced.{json.dumps(part)}]"]
        lines += [f"{json.dumps(key)} = {_toml(value)}" for key, value in record.items()]
    return "".join(line + "\n" for line in lines)


def _how(part: str) -> str:
    argument, key = PLACES.get(part, (part, f"{part}.name"))
    return f"give it again from Python, as `{argument}=`, or make the run with `{key}` = 'module:object' in its config"


def _labels(given: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): part_label(describe_part(value)) for key, value in given.items()}


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _enclosed(function: Any) -> dict[str, Any]:
    """Return the plain values that a function encloses, such as the momentum of a solver's step.

    >>> _enclosed((lambda momentum: lambda: momentum)(0.9))
    {'momentum': 0.9}
    """
    names, cells = (
        getattr(getattr(function, "__code__", None), "co_freevars", ()),
        getattr(function, "__closure__", None),
    )
    enclosed = {name: cell.cell_contents for name, cell in zip(names, cells or (), strict=True)}
    return {name: value for name, value in enclosed.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _data_digest(population: Population) -> str:
    """Return a digest over the columns of a population; of one on disk they are known from its manifest."""
    stored = read_manifest(population.folder)["columns"] if population.folder else {}
    found = hashlib.sha256(str(population.classes).encode())
    for part, samples in (("train", population.train), ("test", population.test)):
        for kind in ("x", "y", "offsets"):
            array, known = getattr(samples, kind), stored.get(f"{part}_{kind}", {})
            content = known.get("sha256") or hashlib.sha256(np.ravel(array).view(np.uint8).data).hexdigest()
            found.update(f"\n{array.dtype.str} {array.shape} {content}".encode())
    return found.hexdigest()
