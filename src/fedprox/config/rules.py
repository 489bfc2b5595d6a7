"""Rules that involve more than one setting."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fedprox.config.builtin_parts import FILE_KINDS
from fedprox.config.part_keys import REQUIRED, Key, part_keys
from fedprox.config.parts import capability, find_part
from fedprox.config.privacy import check_privacy
from fedprox.config.resolution import takes_data_key
from fedprox.config.selection import check_selection
from fedprox.core.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedprox.config.config import Config

__all__ = ["check_schedule", "check_together"]

_MOST_THREADS, _MOST_DRAWS = 1024, 10**7


def check_together(config: Config) -> None:
    """Refuse settings that are allowed separately but not together."""
    needs_every_round = [
        name
        for name, active in (
            (f"method.mu = {config.method.mu!r}", _follows_the_loss(config.method.mu)),
            ("stop.converged", config.stop.converged),
            ("stop.diverged", config.stop.diverged),
        )
        if active
    ]
    if needs_every_round and config.measure.every != 1:
        raise ConfigError(
            f"`measure.every` must be 1 with `{needs_every_round[0]}`, which needs the loss of every round; "
            f"got {config.measure.every}"
        )
    for name in ("momentum", "nesterov", "weight_decay"):
        if getattr(config.solver, name) and name not in _keys("solvers", config.solver.name, "solver.name"):
            raise ConfigError(
                f"`solver.{name}` must be left out with solver.name = {config.solver.name!r}, which has no such "
                f"setting; got {getattr(config.solver, name)!r}"
            )
    if config.solver.schedule != "constant":
        check_schedule(config, config.solver.schedule)
    _check_finite("solver.options", config.solver.options)
    _check_systems(config)
    path = _keys("data", config.data.name, "data.name").get("path") if not config.data.path else None
    if path is not None and path.default is REQUIRED:
        raise ConfigError(f"`data.path` must be given with data.name = {config.data.name!r}; got ''")
    _check_data(config)
    if config.compat.split != "paper" and config.data.name not in ("synthetic", "synthetic_iid"):
        raise ConfigError(
            f"`compat.split` must be 'paper' with data.name = {config.data.name!r}, since it applies to synthetic "
            f"data only; got {config.compat.split!r}"
        )
    if config.devices.stragglers and not config.compat.most_epochs(config.solver.epochs):
        raise ConfigError(
            "`solver.epochs` must be >= 2 with `compat.straggler_epochs = 'released'`, where stragglers draw from "
            f"1 to E - 1; got {config.solver.epochs}"
        )
    if config.engine.name == "local" and config.engine.workers > _MOST_THREADS:
        raise ConfigError(
            f"`engine.workers` must be at most {_MOST_THREADS} with engine.name = 'local', where each is a thread; "
            f"got {config.engine.workers}"
        )
    if config.devices.sampling == "proportional" and config.devices.per_round > _MOST_DRAWS:
        raise ConfigError(f"`devices.per_round` must be at most {_MOST_DRAWS} draws; got {config.devices.per_round}")
    if config.engine.address and config.engine.name == "local":
        raise ConfigError(
            f"`engine.address` must be left out with engine.name = {config.engine.name!r}, which needs none; "
            f"got {config.engine.address!r}"
        )
    if config.attack.share and config.privacy.clip:
        raise ConfigError(
            "`attack.share` must be 0 with `privacy.clip`, since attacks replace replies one by one and privacy adds "
            f"them up; got {config.attack.share:g}"
        )
    if config.attack.share == 0 and config.attack.strength:
        raise ConfigError(f"`attack.strength` must be left out with attack.share = 0; got {config.attack.strength:g}")
    check_privacy(config)
    check_selection(config)


def check_schedule(config: Config, schedule: str) -> None:
    """Refuse a learning rate that changes over the rounds with a solver that is given it once."""
    if "learning_rate" in _keys("solvers", config.solver.name, "solver.name"):
        raise ConfigError(
            f"`solver.schedule` must be 'constant' with solver.name = {config.solver.name!r}, which is given its "
            f"learning rate once, before the first round; got {schedule!r}"
        )


def _follows_the_loss(mu: float | str) -> bool:
    """Return whether a rule for mu declares that it needs the loss of every round."""
    return isinstance(mu, str) and bool(capability(find_part("mu", mu, "method.mu"), "needs_every_loss", False))


def _keys(group: str, name: str, field: str) -> Mapping[str, Key]:
    return part_keys(group, find_part(group, name, field))


def _check_data(config: Config) -> None:
    """Refuse settings of `[data]` that its data set or partition does not have, and would ignore."""
    data = config.data
    if data.name in ("cifar10", "fashion_mnist") and not data.partition:
        raise ConfigError(
            f"`data.partition` must be one of iid, dirichlet, classes, power_law with data.name = "
            f"{data.name!r}, which has no devices of its own; got ''"
        )
    for key, partition in (("concentration", "dirichlet"), ("classes_per_device", "classes")):
        value = getattr(data, key)
        if value != _default(type(data), key) and data.partition != partition:
            raise ConfigError(f"`data.{key}` must be left out unless data.partition = {partition!r}; got {value!r}")
    for key in ("alpha", "beta", "devices", "path"):
        value = getattr(data, key)
        if value != _default(type(data), key) and not takes_data_key(key, data.name, data.partition):
            raise ConfigError(f"`data.{key}` must be left out with data.name = {data.name!r}, {_why(key, value)}")


def _why(key: str, value: Any) -> str:
    if key == "devices":
        return f"which has devices of its own, unless data.partition is given; got {value!r}"
    hint = FILE_KINDS.get(PurePath(str(value).removesuffix(".gz")).suffix) if key == "path" else None
    return f"which has no such setting; got {value!r}" + (
        f"; to read the file set data.name = {hint!r}" if hint else ""
    )


def _check_finite(name: str, value: Any) -> None:
    """Refuse a number that is not finite, however deep in a table whose keys are the solver's own."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"`{name}` must be a finite number; got {value!r}")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_finite(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_finite(f"{name}[{index}]", inner)


@functools.cache
def _default(section: type[BaseModel], key: str) -> Any:
    return section.model_fields[key].get_default(call_default_factory=True)


def _check_systems(config: Config) -> None:
    systems = config.systems
    if systems.model == "clock":
        if config.devices.stragglers > 0:
            raise ConfigError(
                "`devices.stragglers` must be 0 with systems.model = 'clock', where the clock decides who is late; "
                f"got {config.devices.stragglers}"
            )
        if systems.profile and systems.trace:
            raise ConfigError(
                f"`systems.profile` must be left out with `systems.trace`, which describes every device; "
                f"got {systems.profile!r}"
            )
        _check_server(config)
        return
    for key in ("profile", "trace", "deadline", "rare_labels", "rare_by"):
        value = getattr(systems, key)
        if value != _default(type(systems), key):
            raise ConfigError(f"`systems.{key}` must be left out unless systems.model = 'clock'; got {value!r}")
    if systems.server != "synchronous":
        raise ConfigError(
            f"`systems.server` must be 'synchronous' unless systems.model = 'clock', which simulates arrival times; "
            f"got {systems.server!r}"
        )
    _check_server(config)


_SERVER_KEYS = {
    "over_selection": ("over_selection",),
    "concurrency": ("buffered", "asynchronous"),
    "buffer": ("buffered",),
    "staleness": ("buffered", "asynchronous"),
    "mixing": ("asynchronous",),
}
"""The servers that a key belongs to."""


def _check_server(config: Config) -> None:
    systems = config.systems
    for key, servers in _SERVER_KEYS.items():
        if key == "staleness" and config.deploy.late == "merge":
            continue
        value = getattr(systems, key)
        if value != _default(type(systems), key) and systems.server not in servers:
            named = " or ".join(repr(server) for server in servers)
            raise ConfigError(f"`systems.{key}` must be left out unless systems.server = {named}; got {value!r}")
    if systems.server == "buffered" and systems.buffer > systems.concurrency:
        raise ConfigError(
            f"`systems.buffer` must be at most `systems.concurrency`, {systems.concurrency}, the devices at work; "
            f"got {systems.buffer}"
        )
