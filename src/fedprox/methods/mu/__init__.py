"""The proximal coefficient mu over the rounds: a constant, the paper's adaptive rule, automatic, or a custom rule.

A custom rule is an object with three members; pass it to `fedprox.train`, which reads its mu before every round:

>>> from dataclasses import asdict, dataclass, replace
>>> @dataclass(frozen=True)
... class Halving:
...     '''Halves mu after every round.'''
...
...     mu: float
...
...     def after(self, signals):
...         return replace(self, mu=self.mu / 2) if signals.weights else self
...
...     def state(self):
...         return asdict(self)
>>> import fedprox
>>> fedprox.train({"rounds": 3}, mu_controller=Halving(1.0)).devices.column("mu")
[1.0, 0.5, 0.25]
"""

from __future__ import annotations

from typing import Any

from fedprox.config import Config
from fedprox.config.parts import build_part
from fedprox.core.errors import ConfigError
from fedprox.methods.mu.adaptive import AdaptiveMu
from fedprox.methods.mu.auto import AutoMu
from fedprox.methods.mu.constant import ConstantMu
from fedprox.methods.mu.controller import MuController, Signals, after, current_mu, learns, saved_state
from fedprox.methods.mu.drift import DriftMu

__all__ = [
    "AdaptiveMu",
    "AutoMu",
    "ConstantMu",
    "DriftMu",
    "MuController",
    "Signals",
    "after",
    "build",
    "current_mu",
    "learns",
    "restore",
    "saved_state",
]


def build(config: Config, devices: int) -> MuController:
    """Return the controller that the config names, for a run with that number of devices.

    A constructor's `mu` is its initial value, `method.mu_initial`; its `share` is that of the devices in a round.
    """
    method = config.method
    if not isinstance(method.mu, str):
        return ConstantMu(float(method.mu))
    share = min(config.devices.per_round / devices, 1.0)
    rate = config.solver.learning_rate
    given = {"mu": method.mu_initial, "learning_rate": rate, "share": share, "seed": config.seed}
    controller = build_part("mu", "method.mu", method, given)
    if not all(hasattr(controller, member) for member in ("mu", "after", "state")):
        raise ConfigError(
            "`method.mu` must name a controller with `mu`, `after` and `state`, or a callable that returns one; "
            f"got {method.mu!r}, which gives {type(controller).__name__}"
        )
    return controller


def restore(controller: MuController, state: dict[str, Any]) -> MuController:
    """Return the controller that `state` was taken from."""
    return type(controller)(**state)
