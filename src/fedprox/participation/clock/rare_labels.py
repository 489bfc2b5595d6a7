"""Devices that are rarely available because of their data: the correlation of availability with labels.

A device with the share q_k of its training samples in `systems.rare_labels` is available less often: its level is lower
by rare_by * q_k standard deviations of the levels (`fedprox.participation.clock.habits`). With 0, availability is
independent of the data. The labels of a device are read when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedprox.config import SystemsConfig
from fedprox.core.errors import ConfigError
from fedprox.population import Population

__all__ = ["build_rarity"]


def build_rarity(systems: SystemsConfig, population: Population) -> Callable[[int], float] | None:
    """Return how much rarer than others each device is; None where no labels are rare.

    >>> population = Population.from_arrays(np.zeros((5, 1)), np.array([0, 0, 2, 1, 2]), np.array([0, 0, 0, 0, 1]))
    >>> rarity = build_rarity(SystemsConfig(rare_labels=[2], rare_by=3.0), population)
    >>> population.train.of(1)[1].tolist(), rarity(1)
    ([2], 3.0)
    """
    rare = systems.rare_labels
    if not rare:
        return None
    if population.classes == 0:
        raise ConfigError(f"`systems.rare_labels` must be left out for data without labels; got {rare}")
    for label in rare:
        if label >= population.classes:
            raise ConfigError(
                f"`systems.rare_labels` must be labels of the data, from 0 to {population.classes - 1}; got {label}"
            )
    return lambda device: systems.rare_by * float(np.isin(population.train.of(device)[1], rare).mean())
