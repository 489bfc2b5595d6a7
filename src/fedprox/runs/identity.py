"""Which run a folder holds: what resume may change in a config, and what makes it another run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.config import Config, read_toml
from fedprox.config.resolution import part_defaults
from fedprox.core.errors import RunFolderError
from fedprox.runs.replaced import Replaced, check_replaced, replaced_toml

__all__ = ["check_continues", "read_config", "run_identity", "split_config", "write_config"]

_MAY_CHANGE = ("rounds", "engine", "checkpoint", "deploy")  # on resume
_MUST_STAY = "deploy.devices"  # who can be drawn, and what privacy costs


def read_config(path: str | Path) -> tuple[Config, Replaced]:
    """Return the config of a run folder, and the parts that were given as objects from Python instead."""
    settings = read_toml(Path(path) / "config.toml")
    replaced = settings.pop("replaced", {})
    if not isinstance(replaced, dict) or not all(isinstance(part, dict) for part in replaced.values()):
        raise RunFolderError(f"{path}/config.toml must have a table for each part in [replaced]; got {replaced!r}")
    return Config.from_dict(settings), replaced


def split_config(
    config: Config | Mapping[str, Any] | str | Path,
) -> tuple[Config | Mapping[str, Any] | str | Path, Replaced]:
    """Return a config as `Config.of` takes it, and the parts from Python that the file of a run asks for beside it."""
    if isinstance(config, (str, Path)) and Path(config).suffix == ".toml":
        config = read_toml(config)
    if not isinstance(config, Mapping) or "replaced" not in config:
        return config, {}
    rest = {key: value for key, value in config.items() if key != "replaced"}
    return rest, config["replaced"]


def write_config(config: Config, replaced: Replaced) -> str:
    """Return what `read_config` reads back."""
    return config.to_toml() + replaced_toml(replaced)


def run_identity(config: Config, replaced: Replaced) -> dict[str, Any]:
    """Return what a checkpoint keeps of its run: a digest of the settings that must stay, and the parts from Python.

    Only settings that are not the defaults count, so that a setting that comes with a later version changes nothing.
    The own settings of a method count in any case.
    """
    settings = config.to_dict()
    defaults = _flat(Config().to_dict()) | part_defaults(settings)
    kept = {key: value for key, value in _flat(settings).items() if _must_stay(key)}
    own = {key: value for key, value in kept.items() if key not in defaults or defaults[key] != value}
    text = json.dumps(own, sort_keys=True)
    parts = {part: record for part, record in replaced.items() if part not in _MAY_CHANGE}
    return {"config": hashlib.sha256(text.encode()).hexdigest(), "replaced": json.loads(json.dumps(parts))}


def check_continues(path: Path, config: Config, replaced: Replaced | None = None) -> None:
    """Refuse a config, or parts from Python, that cannot continue the run in `path`; a folder without one is fine.

    A setting that the folder's config does not have, being older than the setting, had its default.
    """
    if not (path / "config.toml").exists():
        return
    old_config, recorded = read_config(path)
    before, now = _flat(old_config.to_dict()), _flat(config.to_dict())
    changed = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key) and _must_stay(key)]
    if changed:
        raise RunFolderError(
            f"{path} was started with another config; resume must not change " + ", ".join(f"`{k}`" for k in changed)
        )
    if now["rounds"] < before["rounds"]:
        raise RunFolderError(
            f"`rounds` must not be smaller than before when a run is resumed ({before['rounds']}); got {now['rounds']}"
        )
    check_replaced(path, recorded, replaced or {})


def _must_stay(key: str) -> bool:
    return key.split(".", maxsplit=1)[0] not in _MAY_CHANGE or key == _MUST_STAY


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
