"""TOML in and out.

`tomli_w` writes complete documents only. This module also writes single values, as on a command line (`method.mu=0.1`),
and lists and small tables on one line, as in the documentation.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.core.errors import ConfigError
from fedprox.core.reading import reading

__all__ = ["dump_toml", "read_toml", "toml_value"]

_LARGEST = 1 << 24  # bytes of a config; the time to parse one grows faster than its size


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; raises a one-sentence error if it cannot be read."""
    name = f"config file {path}"
    with reading(path, "valid TOML", name=name, error=ConfigError):
        if (Path(path) / "config.toml").is_file():
            raise ConfigError(
                f"CONFIG must be a file; {path} is a run folder, whose settings are in {Path(path) / 'config.toml'}"
            )
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ConfigError(f"{name} must have at most {_LARGEST:,} bytes; it has more")
        try:
            return tomllib.loads(content.decode())
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name} is not UTF-8 text (byte {error.start})") from None
        except RecursionError:
            raise ConfigError(f"{name} has tables or lists nested too deeply to be read") from None


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
