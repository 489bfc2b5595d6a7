"""Settings changed from the command line: `section.key=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from fedprox.config.config import Config
from fedprox.config.fields import Section
from fedprox.config.sections import METHOD_KEYS
from fedprox.core.errors import ConfigError

__all__ = ["with_overrides"]


def with_overrides(settings: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `section.key=value` strings to nested settings; the last one wins.

    The value is read as TOML, and as plain text where it is not valid TOML or the key wants text. With another
    `method.name`, settings of the method before that the new one does not have are left out.

    >>> with_overrides({"seed": 1}, ["method.mu=0.1", "data.path=./x", "seed=2"])
    {'seed': 2, 'method': {'mu': 0.1}, 'data': {'path': './x'}}
    """
    result = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    overrides = list(overrides)
    for override in overrides:
        key, _, name = override.partition("=")
        if key.strip() == "method.name" and isinstance(result.get("method"), dict):
            _keep_what_fits(result["method"], name.strip().strip("\"'"))
    for override in overrides:
        key, equals, text = override.partition("=")
        *sections, name = key.strip().split(".")
        if not equals or not name or len(sections) > 1:
            raise ConfigError(f"an override must be section.key=value; got {override!r}")
        target = result
        if sections:
            target = result.setdefault(sections[0], {})
            if not isinstance(target, dict):
                raise ConfigError(f"`{sections[0]}` is not a section; got {override!r}")
        target[name] = _override_value(sections, name, text.strip())
    return result


def _keep_what_fits(method: dict[str, Any], name: str) -> None:
    """Take away what a recipe says of its own method, such as its mu, when another one is asked for."""
    for key in [key for key in method if key != "name" and key not in METHOD_KEYS.get(name, method)]:
        del method[key]


def _override_value(sections: list[str], name: str, text: str) -> Any:
    owner: Any = Config
    for section in sections:
        field = owner.model_fields.get(section)
        owner = field.annotation if field is not None else Section
    field = owner.model_fields.get(name)
    if field is not None and field.annotation is str:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
