"""Settings changed from the command line: `section.key=value`."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from fedprox.config.config import Config
from fedprox.config.resolution import PLACES, Place, keys_of_section, takes_data_key, takes_mu
from fedprox.config.sections import MethodConfig
from fedprox.core.errors import ConfigError

__all__ = ["with_overrides"]


def with_overrides(settings: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `section.key=value` strings to nested settings; the last one wins.

    The value is read as TOML, and as plain text where it is not valid TOML or the key's type is text. With another
    `method.name`, settings of the previous method that the new one does not have are dropped; the same holds for other
    parts.

    >>> with_overrides({"seed": 1}, ["method.mu=0.1", "data.path=./x", "seed=2"])
    {'seed': 2, 'method': {'mu': 0.1}, 'data': {'path': './x'}}
    """
    result = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    changes = [_read(override) for override in overrides]
    names = {(place.section, place.key): place for place in PLACES}
    for section, key, text in changes:
        place = names.get((section, key))
        if place is not None and isinstance(result.get(section), dict):
            _keep_what_fits(result[section], place, _override_value(section, key, text, {}))
    for section, key, text in sorted(changes, key=lambda change: change[:2] not in names):  # names of parts first
        target = result
        if section:
            target = result.setdefault(section, {})
            if not isinstance(target, dict):
                raise ConfigError(f"`{section}` is not a section; got {f'{section}.{key}={text}'!r}")
        table, dot, inner = key.partition(".")
        if dot:
            before = target.get(table, {})
            target[table] = {**before, inner: _override_value("", inner, text, {})}
        else:
            target[key] = _override_value(section, key, text, target)
    return result


def _is_table(section: str, key: str) -> bool:
    field = _fields(section).get(key)
    return field is not None and typing.get_origin(field.annotation) is dict


def _read(override: str) -> tuple[str, str, str]:
    """Divide `section.key=value` (or `key=value`) into its three parts."""
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if len(sections) == 2 and _is_table(*sections):  # a key of a table, such as solver.options.b1
        sections, key = sections[:1], f"{sections[1]}.{key}"
    if not equals or not key or len(sections) > 1:
        raise ConfigError(f"an override must be section.key=value; got {override!r}")
    return sections[0] if sections else "", key, text.strip()


def _keep_what_fits(settings: dict[str, Any], place: Place, name: Any) -> None:
    """Drop a recipe's settings of its own part, such as a method's mu, when another part is chosen."""
    try:
        known = {*_fields(place.section), *keys_of_section(place.section, {**settings, place.key: name})}
        unused = set(_MU_KEYS) if place.group == "methods" and not takes_mu(name) else set()
        if place.group == "data":
            kept = settings.get("partition", "")
            unused = {key for key in ("alpha", "beta", "devices", "path") if not takes_data_key(key, name, kept)}
    except ConfigError:
        return  # the name is wrong, which is reported when the config is read
    for key in [key for key in settings if key != place.key and (key not in known or key in unused)]:
        del settings[key]


def _override_value(section: str, key: str, text: str, settings: Mapping[str, Any]) -> Any:
    """Return the value read as TOML, or unchanged if the key's type is text or the text is not TOML."""
    field = _fields(section).get(key)
    if (field.annotation if field is not None else _own_annotation(section, key, settings)) is str:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _fields(section: str) -> Mapping[str, Any]:
    if not section:
        return Config.model_fields
    owner = Config.model_fields.get(section)
    return getattr(owner.annotation, "model_fields", {}) if owner is not None else {}


def _own_annotation(section: str, key: str, settings: Mapping[str, Any]) -> Any:
    """Return the type of a key that is a part's own; None where there is none."""
    try:
        found = keys_of_section(section, settings).get(key)
    except ConfigError:
        return None
    return found.annotation if found is not None else None


_MU_KEYS = [key for key in MethodConfig.model_fields if key.startswith("mu")]
