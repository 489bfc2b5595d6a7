"""TOML in and out."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.core.errors import ConfigError

__all__ = ["dump_toml", "read_toml", "toml_value"]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file, or say in one sentence why it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path} is not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from None


def dump_toml(settings: Mapping[str, Any]) -> str:
    """Return nested settings as TOML text."""
    top = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    lines = [f"{name} = {toml_value(value)}" for name, value in top.items()]
    for section, values in settings.items():
        if isinstance(values, Mapping):
            lines += ["", f"[{section}]", *(f"{name} = {toml_value(value)}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Return a value as it is written in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
    return repr(value)
