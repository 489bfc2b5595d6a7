"""Sound settings drawn at random: every method, merge rule, solver, schedule and attack that the registry has."""

from __future__ import annotations

import random
from typing import Any

from fedprox.config import Config
from fedprox.config.builtin_parts import BUILTIN
from fedprox.core.errors import ConfigError

__all__ = ["SMALL", "drawn_settings"]

SMALL: dict[str, Any] = {
    "rounds": 2,
    "solver": {"epochs": 1},
    "data": {"devices": 4},
    "devices": {"per_round": 2},
    "seed": 1,
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "method.name": tuple(BUILTIN["methods"]),
    "method.mu": (0.0, 0.5, 1.0, "auto", "adaptive"),
    "merge.rule": tuple(BUILTIN["merge"]),
    "solver.name": tuple(BUILTIN["solvers"]),
    "solver.schedule": tuple(BUILTIN["schedules"]),
    "devices.sampling": tuple(BUILTIN["samplers"]),
    "devices.stragglers": (0.0, 0.5, 0.9),
    "devices.per_round": (1, 2, 4),
    "systems.model": tuple(BUILTIN["systems"]),
    "systems.server": ("synchronous", "over_selection", "buffered", "asynchronous"),
    "model.name": ("softmax_regression", "mlp"),
    "data.partition": ("", "iid", "dirichlet", "classes", "power_law"),
    "data.validation": (0.0, 0.3),
    "data.holdout_devices": (0.0, 0.25),
    "attack.share": (0.0, 0.5, 1.0),
    "attack.kind": ("sign_flip", "scale", "noise", "label_flip", "alie", "ipm"),
    "attack.strength": (0.0, 1.0, 1e30),
    "personal.parameters": ([], ["bias"], ["*"]),
    "personal.frozen": ([], ["weight"], ["*"]),
    "privacy.clip": (0.0, 0.5),
    "privacy.noise_multiplier": (0.0, 1.0),
    "privacy.where": ("server", "client"),
    "measure.gamma": (False, True),
    "stop.diverged": (False, True),
}


def drawn_settings(dice: random.Random) -> dict[str, Any]:
    """Return all the settings of a small run, the own keys of its parts among them, that a config accepts."""
    settings = {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}
    drawn = {"method.name": dice.choice(_CHOICES["method.name"])}
    drawn |= {key: dice.choice(_CHOICES[key]) for key in dice.sample(list(_CHOICES), dice.choice((0, 1, 2, 3)))}
    if "systems.server" in drawn:  # all but the first need the clock
        drawn = {"systems.model": "clock", **drawn}
    for key, value in drawn.items():
        section, name = key.split(".")
        before = dict(settings.get(section, {}))
        settings[section] = {**before, name: value}
        try:
            Config.from_dict(settings)
        except ConfigError:  # it does not go with what was drawn before
            settings[section] = before
    return Config.from_dict(settings).to_dict()
