"""The parts that a config names, and the keys that they add to their sections.

Before a config is checked as a whole, each section that names a part gets the part's keys: a given value is checked
against the type of the callable's parameter, and a missing one takes the callable's default. So a config states all
that its parts receive, even where the default of a part differs from that of its section.

>>> resolve_parts({"method": {"name": "feddyn"}})
{'method': {'name': 'feddyn', 'alpha': 0.1}}
>>> resolve_parts({"method": {"name": "feddyn", "alpa": 0.2}})
Traceback (most recent call last):
...
fedprox.core.errors.ConfigError: unknown key `method.alpa`; did you mean `method.alpha`?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedprox.config import sections
from fedprox.config.fields import PartSection
from fedprox.config.nearest_key import nearest_key
from fedprox.config.part_keys import GROUPS, REQUIRED, Key, part_keys
from fedprox.config.parts import builtin_names, capability, find_part, is_builtin
from fedprox.core.errors import ConfigError

__all__ = [
    "PLACES",
    "Place",
    "keys_of_section",
    "names_modules",
    "part_defaults",
    "resolve_parts",
    "takes_data_key",
    "takes_mu",
]


class Place(NamedTuple):
    """A key of the config that names a part of a group."""

    section: str
    key: str
    group: str

    @property
    def field(self) -> str:
        """The key as it is written in errors."""
        return f"{self.section}.{self.key}"

    def name_in(self, settings: Mapping[str, Any]) -> str | None:
        """Return the name of the part in a section's settings; None where there is none."""
        name = settings.get(self.key, _SECTIONS[self.section].model_fields[self.key].default)
        return name if isinstance(name, str) and name else None


PLACES = (
    Place("data", "name", "data"),
    Place("model", "name", "models"),
    Place("method", "name", "methods"),
    Place("method", "mu", "mu"),
    Place("solver", "name", "solvers"),
    Place("solver", "schedule", "schedules"),
    Place("devices", "sampling", "samplers"),
    Place("systems", "model", "systems"),
    Place("merge", "rule", "merge"),
    Place("stop", "rule", "stopping"),
    Place("engine", "name", "engines"),
)
"""Every key that names one part; `measure.metrics` names several."""

_SECTIONS: Mapping[str, type[PartSection]] = {
    "data": sections.DataConfig,
    "model": sections.ModelConfig,
    "method": sections.MethodConfig,
    "solver": sections.SolverConfig,
    "devices": sections.DevicesConfig,
    "systems": sections.SystemsConfig,
    "merge": sections.MergeConfig,
    "stop": sections.StopConfig,
    "engine": sections.EngineConfig,
}
_MU_KEYS = tuple(key for key in sections.MethodConfig.model_fields if key.startswith("mu"))


def resolve_parts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the keys of their parts checked and filled in; what is not a table is left as it is."""
    resolved = dict(settings)
    for name in _SECTIONS:
        section = resolved.get(name, {})
        if isinstance(section, Mapping) and (section or name in settings):
            resolved[name] = _resolved(name, dict(section))
    _check_metrics(resolved.get("measure"))
    return resolved


def keys_of_section(section: str, settings: Mapping[str, Any]) -> dict[str, Key]:
    """Return the keys that the parts named in a section's settings add to it."""
    keys: dict[str, Key] = {}
    for place, name in _named(section, settings):
        keys |= part_keys(place.group, find_part(place.group, name, place.field))
    return keys


def takes_mu(method: str) -> bool:
    """Return whether a method has a proximal term, so that `method.mu` means something; a function may have one."""
    return bool(capability(find_part("methods", method, "method.name"), "proximal", True))


def takes_data_key(key: str, name: str, partition: str) -> bool:
    """Return whether a data set, or the partition of its samples, has a key of `[data]`.

    >>> takes_data_key("devices", "csv", ""), takes_data_key("devices", "csv", "iid")
    (False, True)
    """
    return (key == "devices" and bool(partition)) or key in part_keys("data", find_part("data", name, "data.name"))


def names_modules(settings: Mapping[str, Any]) -> bool:
    """Return whether settings name a part that is not built in, so that another process must find its module."""
    for section in _SECTIONS:
        values = settings.get(section, {})
        if any(not is_builtin(place.group, name) for place, name in _named(section, values)):
            return True
    return bool(settings.get("measure", {}).get("metrics"))


def part_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the keys that the built-in parts of resolved settings add to sections, except methods.

    >>> part_defaults(resolve_parts({"merge": {"rule": "trimmed_mean"}}))
    {'merge.trim': 0.1}
    """
    found: dict[str, Any] = {}
    for section, kind in _SECTIONS.items():
        for place, name in _named(section, settings.get(section, {})):
            if place.group == "methods" or not is_builtin(place.group, name):
                continue
            keys = part_keys(place.group, find_part(place.group, name, place.field))
            own = {key: each.default for key, each in keys.items() if key not in kind.model_fields}
            found |= {f"{section}.{key}": _written(default) for key, default in own.items() if _is_plain(default)}
    return found


def _why(place: Place, name: str) -> str:
    """Return why a part of a user's module needs a key: it is not called with more than its kind is called with."""
    if is_builtin(place.group, name):
        return ""
    group = GROUPS[place.group]
    if group.is_function:
        return f", which needs this argument; a function is called with {', '.join(group.first)}"
    return ", a callable that returns the part and needs this argument"


def _named(section: str, settings: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    for place in PLACES:
        if place.section == section and (name := place.name_in(settings)) is not None:
            yield place, name


def _resolved(section: str, settings: dict[str, Any]) -> dict[str, Any]:
    fields = _SECTIONS[section].model_fields
    own = [key for key in settings if key not in fields]
    options = settings.get("options", {})  # where the section has such a table, it may hold the part's own keys too
    keys: dict[str, Key] = {}
    for place, name in _named(section, settings):
        found = part_keys(place.group, find_part(place.group, name, place.field))
        if is_builtin(place.group, name) and place.group != "methods":  # of the others the section has rule and default
            found = {key: value for key, value in found.items() if key not in fields}
        keys |= found
        if isinstance(options, Mapping) and "options" in fields and "options" not in found:
            _take_options(section, settings, {name: found[name] for name in options if name in found})
        for key in found.values():
            if key.name in settings:
                continue
            if key.default is REQUIRED and key.name not in fields:
                raise ConfigError(
                    f"`{section}.{key.name}` must be given with {place.field} = {name!r}{_why(place, name)}"
                )
            if _is_plain(key.default):
                settings[key.name] = _written(key.default)
    if section == "method":
        _check_mu(settings)
    for given in own:
        if given not in keys:
            raise _unknown(section, given, settings, keys)
    for key in keys.values():
        if key.name in settings:
            settings[key.name] = key.checked(f"{section}.{key.name}", settings[key.name])
    return settings


def _take_options(section: str, settings: dict[str, Any], keys: Mapping[str, Key]) -> None:
    """Set keys to what `options` gives them, so that a config states each with the value that is used."""
    for name, key in keys.items():
        value = key.checked(f"{section}.options.{name}", settings["options"][name])
        if settings.setdefault(name, value) != value:
            raise ConfigError(
                f"`{section}.options.{name}` must be left out or equal `{section}.{name}` = {settings[name]!r}; "
                f"got {value!r}"
            )


def _check_mu(settings: Mapping[str, Any]) -> None:
    """Refuse mu and its companions with a method that has no proximal term."""
    name = PLACES[2].name_in(settings)
    given = [key for key in _MU_KEYS if key in settings]
    if name is None or not given or takes_mu(name):
        return
    owners = [method for method in builtin_names("methods") if takes_mu(method)]
    raise ConfigError(_left_out("method", given[0], f"method.name = {name!r}", owners, settings[given[0]]))


def _unknown(section: str, key: str, settings: Mapping[str, Any], keys: Mapping[str, Key]) -> ConfigError:
    """Return the error of a key that no part of the section takes: it may belong to another part, or to none."""
    for place, name in _named(section, settings):
        owners = [
            other
            for other in builtin_names(place.group)
            if key in part_keys(place.group, find_part(place.group, other, place.field))
        ]
        if owners:
            return ConfigError(_left_out(section, key, f"{place.field} = {name!r}", owners, settings[key]))
    known = [f"{name}.{each}" for name, fields in _SECTIONS.items() for each in fields.model_fields]
    known += [f"{section}.{each}" for each in keys]
    return ConfigError(f"unknown key `{section}.{key}`{nearest_key(f'{section}.{key}', known)}")


def _left_out(section: str, key: str, chosen: str, owners: list[str], value: Any) -> str:
    return (
        f"`{section}.{key}` must be left out with {chosen}, which has no such setting "
        f"(it belongs to {', '.join(owners)}); got {value!r}"
    )


def _check_metrics(measure: Any) -> None:
    """Find every metric that is named; whether the list is one is for the section to say."""
    names = measure.get("metrics", []) if isinstance(measure, Mapping) else []
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str):
            find_part("metrics", name, "measure.metrics")


def _written(default: Any) -> Any:
    """Return a default as a config states it."""
    return list(default) if isinstance(default, tuple) else default


def _is_plain(value: Any) -> bool:
    """Return whether a default can be written in a config file."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))
