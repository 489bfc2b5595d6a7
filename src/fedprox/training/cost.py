"""The cost of a run, estimated before it starts: mini-batch steps, the unit of every budget.

A step takes from a microsecond (softmax regression) to tens of milliseconds (an LSTM). A run whose steps would take
years at a microsecond each is refused; one that will take an hour or more is announced.
"""

from __future__ import annotations

import warnings

import numpy as np

from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.methods.mu import MuController
from fedprox.methods.mu.drift import warn_of_full_participation
from fedprox.participation.budget import steps_per_epoch
from fedprox.population import Population

__all__ = ["MOST_IN_ALL", "MOST_PER_DEVICE", "check_cost", "check_start", "expected_steps"]

MOST_PER_DEVICE, MOST_IN_ALL, MANY = 10**9, 10**13, 10**9


def check_start(config: Config, population: Population, mu_controller: MuController | None) -> None:
    """Refuse a run that could never end, and warn about what a user should know before it starts."""
    check_cost(config, population)
    if mu_controller is None:
        warn_of_full_participation(config, population.devices)


def check_cost(config: Config, population: Population) -> None:
    """Refuse a run that could never end, and warn about one that is very long."""
    largest = int(np.diff(population.train.offsets).max())
    per_device = config.solver.epochs * int(steps_per_epoch(largest, config.solver.batch_size))
    if per_device > MOST_PER_DEVICE:
        raise ConfigError(
            f"`solver.epochs` must give at most {MOST_PER_DEVICE:g} mini-batch steps of a device in a round; "
            f"got {config.solver.epochs}, which is {per_device:.3g} steps for the largest device"
        )
    total = expected_steps(config, population)
    if total > MOST_IN_ALL:
        raise ConfigError(
            f"`rounds` must give at most {MOST_IN_ALL:g} mini-batch steps in all; got {config.rounds}, which is "
            f"about {total:.3g} steps with {config.devices.per_round} devices per round"
        )
    if total > MANY:
        warnings.warn(
            f"this run takes about {total:.2g} mini-batch steps: {_duration(total * 1e-6)} at a microsecond each, "
            "which only a small model reaches",
            stacklevel=3,
        )


def expected_steps(config: Config, population: Population) -> float:
    """Return about how many mini-batch steps all rounds take, with E epochs from every device."""
    sizes = np.diff(population.train.offsets)
    steps = np.asarray(steps_per_epoch(sizes, config.solver.batch_size), float)
    share = sizes / sizes.sum() if config.devices.sampling == "proportional" else np.full(len(sizes), 1 / len(sizes))
    return float(config.rounds) * config.devices.per_round * config.solver.epochs * float(share @ steps)


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
