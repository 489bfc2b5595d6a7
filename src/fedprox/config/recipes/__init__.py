"""Built-in recipes: the paper's settings for each data set, as config files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedprox.config import Config, read_toml
from fedprox.core.errors import ConfigError, nearest, short

__all__ = ["load_settings", "names"]


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(Path(item.name).stem for item in files(__name__).iterdir() if item.name.endswith(".toml"))


def load_settings(config: Config | Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Return the settings of a config: of a dict, a file (a name that ends in .toml or holds a slash) or a recipe.

    >>> load_settings("synthetic-1-1")["method"]["mu"]
    1.0
    """
    if isinstance(config, Config):
        return config.to_dict()
    if isinstance(config, Mapping):
        return _plain(config)
    if not isinstance(config, (str, Path)):
        raise ConfigError(
            f"a config must be a Config, a dict of settings, a path or the name of a recipe; got {short(config)}"
        )
    if isinstance(config, Path) or config.endswith(".toml") or "/" in config:
        return read_toml(config)
    if config not in names():
        raise ConfigError(
            f"CONFIG must be a .toml file or one of the recipes {', '.join(names())}; got {config!r}"
            + nearest(config, names())
        )
    return read_toml(Path(str(files(__name__).joinpath(f"{config}.toml"))))


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with NumPy's numbers as Python's.

    >>> import numpy
    >>> _plain({"rounds": numpy.int64(3), "method": {"mu": 0.1}})
    {'rounds': 3, 'method': {'mu': 0.1}}
    """
    plain = {}
    for key, value in settings.items():
        if isinstance(key, str) and "." in key:
            section, _, name = key.partition(".")
            raise ConfigError(f'a dict of settings must be nested: give `{key}` as {{"{section}": {{"{name}": ...}}}}')
        plain[key] = _plain(value) if isinstance(value, Mapping) else value
        if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
            plain[key] = value.item()
    return plain
