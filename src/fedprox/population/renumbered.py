"""A population with its labels numbered differently, or restored to the original numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.population.labels import Labels
from fedprox.population.population import Population
from fedprox.population.samples import Samples

__all__ = ["aligned", "targets"]


def aligned(population: Population, labels: Labels, classes: int) -> Population:
    """Return the population with its labels numbered as `labels` does; refuse a label that is not in it.

    >>> other = Population.from_arrays(x=[[0.0], [1.0]], y=["dog", "dog"], device=[0, 0])
    >>> aligned(other, ("cat", "dog"), classes=2).train.y.tolist()
    [1, 1]
    """
    if population.labels == labels or population.classes == 0:
        return population
    number = {label: code for code, label in enumerate(range(classes) if labels is None else labels)}
    names = range(population.classes) if population.labels is None else population.labels
    used = np.unique(np.concatenate([population.train.y, population.test.y])).tolist()
    if unknown := [names[code] for code in used if names[code] not in number]:
        raise DataError(f"labels must be among {_listed(list(number))}, which the model knows; got {unknown[0]!r}")
    table = np.zeros(population.classes, np.int32)
    for code in used:
        table[code] = number[names[code]]

    return _with_y(population, table, classes=len(number), labels=labels)


def targets(population: Population) -> Population:
    """Return the population for a model that predicts no labels: with the original numbers in place of classes."""
    if population.labels is None or not all(isinstance(label, int) for label in population.labels):
        return population
    table = np.asarray(population.labels, np.float32)

    return _with_y(population, table, classes=0, labels=None)


def _with_y(population: Population, table: NDArray[Any], *, classes: int, labels: Labels) -> Population:
    """Return the population with table[y] for every y."""

    def renewed(samples: Samples) -> Samples:
        return Samples(samples.x, table[samples.y], samples.offsets)

    return replace(
        population,
        train=renewed(population.train),
        test=renewed(population.test),
        validation=None if population.validation is None else renewed(population.validation),
        holdout=None if population.holdout is None else renewed(population.holdout),
        classes=classes,
        labels=labels,
        folder="",
    )


def _listed(labels: Sequence[Any]) -> str:
    shown = ", ".join(repr(label) for label in labels[:10])
    return shown + (f" and {len(labels) - 10} more" if len(labels) > 10 else "")
