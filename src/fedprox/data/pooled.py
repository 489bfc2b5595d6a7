"""Data that comes as one training set and one test set: standardised images, written as a population of one device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.population.writer import PopulationWriter

__all__ = ["standardised", "write_pooled"]

Floats = NDArray[np.float32]


def standardised(train: NDArray[np.uint8], test: NDArray[np.uint8], axes: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return (x - mean) / std of both, with mean and std of the training images over `axes`.

    >>> standardised(np.uint8([[0], [2]]), np.uint8([[4]]), axes=(0, 1))[1].tolist()
    [[3.0]]
    """
    counts = np.float64(np.prod([train.shape[axis] for axis in axes]))
    mean = train.sum(axis=axes, dtype=np.float64) / counts
    square = np.square(train, dtype=np.float32).sum(axis=axes, dtype=np.float64) / counts
    deviation = np.sqrt(np.maximum(square - mean**2, 1e-12))

    def scaled(images: NDArray[np.uint8]) -> Floats:
        x = images.astype(np.float32)
        x -= mean.astype(np.float32)
        x /= deviation.astype(np.float32)
        return x

    return scaled(train), scaled(test)


def write_pooled(
    out: Path,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    *,
    classes: int,
    about: Mapping[str, Any],
) -> None:
    """Write a training and a test set as a population of one device named "all"."""
    with PopulationWriter(out, classes=classes, about={**about, "devices": "one; `data.partition` divides it"}) as file:
        file.add("all", train, test)
