"""Every setting: key, rule, default and meaning, from the same fields as the error messages.

`fedprox config` prints them, and the settings page of the documentation is made from them.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedprox.config.builtin_parts import BUILTIN
from fedprox.config.config import Config
from fedprox.config.meanings import MEANINGS
from fedprox.config.nearest_key import nearest_key
from fedprox.config.part_keys import REQUIRED, part_keys, rule_in_words
from fedprox.config.parts import find_part
from fedprox.config.resolution import PLACES
from fedprox.config.toml import dump_toml
from fedprox.core.errors import ConfigError

__all__ = ["Setting", "all_settings", "commented_toml", "find_setting", "section_settings", "settings_page"]


@dataclass(frozen=True)
class Setting:
    """One key of a config.

    Attributes:
      key: as it is written on the command line, such as "method.mu".
      rule: what its value must be, in words.
      default: its default as TOML; empty where it has none.
      meaning: what it does.
      only: the parts that it belongs to, such as "feddyn"; empty for a key that its section always has.
      values: the few values that it can have; empty where there are more.
    """

    key: str
    rule: str
    default: str
    meaning: str
    only: str = ""
    values: tuple[str, ...] = ()


def all_settings() -> list[Setting]:
    """Return every setting, section by section, those of single parts after those of their section.

    >>> next(each for each in all_settings() if each.key == "solver.epochs").rule
    'an integer >= 1'
    """
    found = []
    for name, field in Config.model_fields.items():
        found += [each for each in section_settings() if each.key.partition(".")[0] == name]
        found += _of_parts(name, set(getattr(field.annotation, "model_fields", ())))
    return found


def section_settings() -> list[Setting]:
    """Return the settings that every config has. No part is imported for them, and so no JAX."""
    found = []
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        if not hasattr(section, "model_fields"):
            found.append(Setting(name, field.description or "", _toml(field.default), MEANINGS.get(name, "")))
            continue
        for key, inner in section.model_fields.items():
            place = f"{name}.{key}"
            default = inner.get_default(call_default_factory=True)
            rule = _names(place) or inner.description or ""
            values = _values(inner.annotation)
            found.append(Setting(place, rule, _toml(default), MEANINGS.get(place, ""), values=values))
    return found


def find_setting(key: str) -> list[Setting]:
    """Return the settings of a key, one for each part that has its own; or those of a section.

    >>> [each.only for each in find_setting("method.alpha")]
    ['feddyn']
    """
    if own := [each for each in section_settings() if each.key == key]:
        return own
    every = all_settings()
    found = [each for each in every if each.key == key or each.key.startswith(f"{key}.")]
    if not found:
        raise ConfigError(f"unknown key `{key}`{nearest_key(key, [each.key for each in every])}")
    return found


def commented_toml() -> str:
    """Return a config file with every setting of a default run, each with its meaning as a comment."""
    lines = [
        "# Every setting with its default. Remove what you do not change.",
        "# A method, solver, model or data set may have more: fedprox config explain method",
    ]
    section = ""
    for each in section_settings():
        *sections, key = each.key.split(".")
        if sections and sections[0] != section:
            section = sections[0]
            lines += ["", f"[{section}]"]
        lines.append(f"{key} = {each.default}  # {each.meaning or each.rule}")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """Return the settings page of the documentation, in Markdown."""
    lines = [
        "# Settings",
        "",
        "Every key of a config, from the same source as the errors and `fedprox config`. On the command line a",
        "key is set with `-s key=value`, such as `-s solver.epochs=5`; in a file, `epochs = 5`",
        "goes into the section `[solver]`.",
    ]
    section = None
    for each in all_settings():
        own = each.key.partition(".")[0] if "." in each.key else ""
        if own != section:
            section = own
            lines += ["", f"## `[{own}]`" if own else "## Top level", ""]
            lines += ["| key | must be | default | meaning |", "|---|---|---|---|"]
        meaning = each.meaning + (f" (only with {each.only})" if each.only else "")
        cells = (f"`{each.key}`", each.rule, f"`{each.default}`" if each.default else "-", meaning.strip())
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _of_parts(section: str, shared: set[str]) -> Iterator[Setting]:
    """Yield the keys that single built-in parts add to a section."""
    for place in PLACES:
        if place.section != section:
            continue
        owners: dict[tuple[str, str, str], list[str]] = {}
        for name in BUILTIN[place.group]:
            for key in part_keys(place.group, find_part(place.group, name, place.field)).values():
                if key.name not in shared and key.default is not REQUIRED:  # those without a default are given to it
                    default = _toml(key.default)
                    owners.setdefault((key.name, rule_in_words(key.annotation), default), []).append(name)
        for (key_name, rule, default), names in owners.items():
            meaning = MEANINGS.get(f"{section}.{key_name}", "")
            yield Setting(f"{section}.{key_name}", rule, default, meaning, ", ".join(names))


def _names(key: str) -> str:
    """Return the rule of a key that names a part and has no other: the built-in names."""
    groups = [place.group for place in PLACES if place.field == key and place.group != "mu"]
    if not groups:
        return ""
    known = list(BUILTIN[groups[0]])
    return f"one of {', '.join([*known, 'module:object'])}" if known else "module:object"


def _values(annotation: Any) -> tuple[str, ...]:
    """Return what can be written for a key that is true or false, or one of a few names."""
    if annotation is bool:
        return ("true", "false")
    is_choice = typing.get_origin(annotation) is typing.Literal
    return tuple(value for value in typing.get_args(annotation) if value) if is_choice else ()


def _toml(value: Any) -> str:
    """Return a default as TOML writes it; an empty table as {}."""
    if value is None or isinstance(value, type(typing.Any)):
        return ""
    return dump_toml({"x": value}).strip().removeprefix("x = ") if not isinstance(value, dict) else "{}"
