"""Flipped labels: attackers train honestly on wrong data, class c as class C - 1 - c."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedprox.attacks.attackers import choose_attackers
from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.population import Population

__all__ = ["flip_labels", "with_flipped_labels"]


def with_flipped_labels(config: Config, population: Population) -> Population:
    """Return the population that the devices of a run train on."""
    if not config.attack.share or config.attack.kind != "label_flip":
        return population
    return flip_labels(population, choose_attackers(config, population.devices))


def flip_labels(population: Population, attackers: NDArray[np.bool_]) -> Population:
    """Return the population with the training labels of the attackers flipped; test labels stay as they are."""
    if population.classes == 0:
        raise ConfigError("`attack.kind` must not be 'label_flip' with data that has no classes; got 'label_flip'")
    train = population.train
    bad = np.repeat(attackers, np.diff(train.offsets))
    y = np.where(bad, population.classes - 1 - train.y, train.y).astype(train.y.dtype)
    return replace(population, train=replace(train, y=y))
