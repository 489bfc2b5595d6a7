"""`[solver] options`: a table of a solver's own settings, checked against the parameters of what builds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedprox.config.part_keys import Key
from fedprox.core.errors import ConfigError, nearest

__all__ = ["checked_options"]


def checked_options(solver: str, options: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return the options; refuse an option that the solver does not have, or an invalid value."""
    for name, value in options.items():
        if name not in keys:
            rule = f"an option of {solver} ({', '.join(keys) or 'it has none'})"
            raise ConfigError(f"`solver.options.{name}` must be {rule}{nearest(name, keys)}; got {value!r}")
    return {name: keys[name].checked(f"solver.options.{name}", value) for name, value in options.items()}
