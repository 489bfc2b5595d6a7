"""The settings of a deployed run: the app's own TOML file, changed by Flower's run config.

    flwr run . --run-config 'out="runs/first" resume=true set="rounds=50 method.mu=0.1"'

Server and devices read the same file out of the same app, so the same names mean the same as in a simulation, and
`fedprox run fedprox.toml` simulates the federation.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.config import Config, read_toml, with_overrides
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.participation.sampling import check_sampling
from fedprox.privacy import build_mechanism

__all__ = ["check_deployable", "check_limit", "project_settings", "resume_flag", "run_settings"]


def run_settings(file: str | Path, run_config: Mapping[str, Any]) -> Config:
    """Read the app's config and apply what `set` in the run config says."""
    overrides = shlex.split(str(run_config.get("set", "")))
    return Config.from_dict(with_overrides(read_toml(file), overrides))


def resume_flag(run_config: Mapping[str, Any]) -> bool:
    """Return whether the run config asks to resume; a text says so only where it is "true".

    >>> resume_flag({"resume": "false"}), resume_flag({"resume": True}), resume_flag({})
    (False, True, False)
    """
    value = run_config.get("resume", False)
    known = {True: True, False: False, "true": True, "false": False, "": False}
    if not isinstance(value, (bool, str)) or value not in known:
        raise ConfigError(f"`resume` in the run config must be true or false; got {value!r}")
    return known[value]


def project_settings(project: Path) -> Path:
    """Return the settings file of an app, given the app's folder."""
    settings = project / "fedprox.toml"
    if not (project / "pyproject.toml").exists() or not settings.exists():
        raise ConfigError(f"an app must be a folder with pyproject.toml and fedprox.toml; got {project}")
    return settings


def check_deployable(config: Config) -> None:
    """Refuse what real devices cannot do."""
    if config.deploy.devices < 1:
        raise ConfigError(f"`deploy.devices` must be the number of devices, at least 1; got {config.deploy.devices}")
    if config.deploy.nodes and len(config.deploy.nodes) != config.deploy.devices:
        raise ConfigError(
            f"`deploy.nodes` must have a node id for each of the {config.deploy.devices} devices, or none at all; "
            f"got {len(config.deploy.nodes)}"
        )
    check_sampling(config.devices.sampling, config.devices.per_round, config.deploy.devices)
    _check_systems(config)
    if config.deploy.min_replies > config.devices.per_round:
        raise ConfigError(
            f"`deploy.min_replies` must be at most {config.devices.per_round}, `devices.per_round`; "
            f"got {config.deploy.min_replies}"
        )
    if config.attack.share:
        raise ConfigError(f"`attack.share` must be 0 on real devices; got {config.attack.share:g}")
    if config.measure.devices:
        raise ConfigError(
            f"`measure.devices` must be 0 on real devices, all of which measure; got {config.measure.devices}"
        )
    if config.privacy.noise_multiplier and config.privacy.where == "client":
        for key in ("dissimilarity", "gamma"):
            if getattr(config.measure, key):
                raise ConfigError(
                    f"`measure.{key}` must be false with `privacy.where` = 'client' on real devices, since it shows "
                    "the server what the noise should hide; got True"
                )


def _check_systems(config: Config) -> None:
    """Refuse simulated time, but for servers that need a clock; on real devices that is the one on the wall."""
    systems = config.systems
    if systems.server == "over_selection":
        raise ConfigError(
            "`systems.server` must be 'synchronous', 'buffered' or 'asynchronous' on real devices; got "
            "'over_selection'; with `deploy.late = 'merge'` a deadline ends the wait and late replies are not lost"
        )
    if systems.model != "stragglers" and not systems.runs_on_events:
        raise ConfigError(
            "`systems.model` must be 'stragglers' on real devices, which use wall-clock time (`deploy.deadline`); "
            f"got {systems.model!r}"
        )
    if systems.runs_on_events and config.devices.failure:
        raise ConfigError(
            f"`devices.failure` must be 0 with systems.server = {systems.server!r} on real devices, which fail "
            f"without it; got {config.devices.failure:g}"
        )
    if systems.server == "asynchronous" and config.deploy.max_weight < 1:
        raise ConfigError(
            "`deploy.max_weight` must be 1 with systems.server = 'asynchronous', where a version has one reply; "
            f"got {config.deploy.max_weight:g}"
        )


def check_limit(config: Config, params: Tree) -> None:
    """Refuse a limit on the norm that the noise of the devices goes beyond by itself."""
    mechanism, limit = build_mechanism(config), config.deploy.max_norm
    if mechanism is None or not mechanism.on_devices or limit in (0, "auto"):
        return
    least = mechanism.longest_update(params)
    if float(limit) < least:
        raise ConfigError(
            f"`deploy.max_norm` must be 'auto', 0 or at least {math.ceil(least)}, the norm that an update with this "
            f"noise may have; got {float(limit):g}"
        )
