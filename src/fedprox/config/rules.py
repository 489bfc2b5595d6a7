"""Rules that involve more than one setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedprox.config.sections import METHOD_KEYS
from fedprox.errors import ConfigError

if TYPE_CHECKING:
    from fedprox.config.config import Config

__all__ = ["check_together"]


def check_together(config: Config) -> None:
    """Refuse settings that are each allowed, but not together."""
    for key in sorted(config.method.model_fields_set - {"name", *METHOD_KEYS[config.method.name]}):
        owners = [method for method, keys in METHOD_KEYS.items() if key in keys]
        raise ConfigError(
            f"`method.{key}` must be left out with method.name = {config.method.name!r}, which has no such setting "
            f"(it belongs to {', '.join(owners)}); got {getattr(config.method, key)!r}"
        )
    needs_every_round = [
        name
        for name, active in (
            (f"method.mu = {config.method.mu!r}", config.method.mu in ("adaptive", "auto")),
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
        if getattr(config.solver, name) and config.solver.name != "sgd":
            raise ConfigError(
                f"`solver.{name}` must be left out with solver.name = {config.solver.name!r}, whose settings go to "
                f"`solver.options`; got {getattr(config.solver, name)!r}"
            )
    if config.data.name in ("leaf", "npz", "arrow", "population") and not config.data.path:
        raise ConfigError(f"`data.path` must be given with data.name = {config.data.name!r}; got ''")
    if config.engine.address and config.engine.name != "ray":
        raise ConfigError(
            f"`engine.address` must be left out with engine.name = {config.engine.name!r}, which needs none; "
            f"got {config.engine.address!r}"
        )
