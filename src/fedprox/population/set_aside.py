"""Samples that training never sees, apart from test data: validation samples and held-out devices.

Settings are chosen by them (`fedprox tune`, `fedprox sweep`), so that nothing is chosen by looking at test data.
Validation samples are a share of each device's training samples. Held-out devices are drawn from all devices and take
part in no round; all their samples, training and test samples alike, show how a model does on devices that it was not
trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import ConfigError
from fedprox.core.randomness import Purpose, words
from fedprox.population.population import Population
from fedprox.population.samples import Samples
from fedprox.population.splitting import split

__all__ = ["set_aside"]


def set_aside(
    population: Population, *, validation: float = 0.0, holdout_devices: float = 0.0, seed: int = 0
) -> Population:
    """Return the population with shares of samples and devices set aside; the rows that stay are copied.

    Args:
      validation: the share of each device's training samples, rounded down; a device keeps at least one.
      holdout_devices: the share of the devices, rounded to the nearest integer.

    >>> population = Population.from_arrays(np.zeros((40, 1)), [0, 1] * 20, np.arange(40) % 4, test=np.zeros(40, bool))
    >>> found = set_aside(population, validation=0.2, holdout_devices=0.25)
    >>> found.devices, len(found.train), len(found.validation), len(found.holdout)
    (3, 24, 6, 10)
    """
    if holdout_devices:
        population = _without_devices(population, holdout_devices, seed)
    if not validation:
        return population
    population.check()
    is_validation = split(population.train.offsets, seed, validation, Purpose.VALIDATION)
    if not is_validation.any():
        largest = int(np.diff(population.train.offsets).max())
        raise ConfigError(
            f"`data.validation` must leave at least one device a validation sample, and the largest has {largest} "
            f"training samples; got {validation}"
        )
    train, taken = (_kept(population.train, chosen) for chosen in (~is_validation, is_validation))
    return replace(population, train=train, validation=taken, folder="", parts={})


def _without_devices(population: Population, share: float, seed: int) -> Population:
    count = int(share * population.devices + 0.5)
    if not 1 <= count < population.devices:
        raise ConfigError(
            f"`data.holdout_devices` must hold out at least one of the {population.devices} devices, and not all; "
            f"got {share}"
        )
    population.check(test=True)
    order = np.argsort(words(population.devices, seed, Purpose.HOLDOUT), kind="stable")
    held, rest = np.sort(order[:count]), np.sort(order[count:])
    return replace(
        population,
        train=_of_devices([population.train], rest),
        test=_of_devices([population.test], rest),
        names=[population.name(int(device)) for device in rest],
        holdout=_of_devices([population.train, population.test], held),
        folder="",
        parts={},
    )


def _kept(samples: Samples, chosen: NDArray[np.bool_]) -> Samples:
    before = np.concatenate([[0], np.cumsum(chosen)]).astype(np.int64)
    return Samples(samples.x[chosen], samples.y[chosen], before[samples.offsets])


def _of_devices(parts: Sequence[Samples], devices: NDArray[np.int64]) -> Samples:
    """Return the samples that some devices have in all parts."""
    pieces = [part.of(int(device)) for device in devices for part in parts]
    sizes = [sum(part.size(int(device)) for part in parts) for device in devices]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Samples(np.concatenate([x for x, _ in pieces]), np.concatenate([y for _, y in pieces]), offsets)
