"""The proximal coefficient mu over the rounds: a constant, the paper's adaptive rule, automatic, or one of your own.

A rule of your own is a value with three members; hand it to `fedprox.train`, which asks it for mu before every round:

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

from fedprox.config import MethodConfig
from fedprox.methods.mu.adaptive import AdaptiveMu
from fedprox.methods.mu.auto import AutoMu
from fedprox.methods.mu.constant import ConstantMu
from fedprox.methods.mu.controller import MuController, Signals

__all__ = ["AdaptiveMu", "AutoMu", "ConstantMu", "MuController", "Signals", "build", "restore"]


def build(config: MethodConfig, learning_rate: float) -> MuController:
    """Return the controller that the config names."""
    if config.mu == "adaptive":
        return AdaptiveMu(config.mu_initial, config.mu_step, config.mu_patience)
    if config.mu == "auto":
        return AutoMu.start(learning_rate)
    return ConstantMu(float(config.mu))


def restore(controller: MuController, state: dict[str, Any]) -> MuController:
    """Return the controller as it was when `state` was taken of it."""
    return type(controller)(**state)
