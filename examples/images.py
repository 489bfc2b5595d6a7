"""Small generated images: a bright bar, vertical, horizontal or diagonal, on a noisy background.

Each device draws its bars mostly in two of the four directions and has its own brightness, so that devices differ.
"""

from __future__ import annotations

import numpy as np

from fedprox import Population

SIDE, CLASSES = 12, 4


def bars(devices: int = 12, seed: int = 0) -> Population:
    """Return a population of images (1, 12, 12) with labels 0 to 3."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(devices), rng.integers(30, 90, devices))
    favourites = np.stack([owner % CLASSES, (owner + 1) % CLASSES])
    labels = np.where(
        rng.random(len(owner)) < 0.8, favourites[rng.integers(0, 2, len(owner)), np.arange(len(owner))], 0
    )
    rest = rng.random(len(owner)) < 0.2
    labels[rest] = rng.integers(0, CLASSES, rest.sum())
    row, column = np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2
    distances = [column, row, (row - column) / 2**0.5, (row + column) / 2**0.5]  # from the bar's axis
    shift = rng.uniform(-2, 2, len(owner))
    brightness = (1 + 0.3 * rng.normal(size=devices))[owner]
    images = np.stack(
        [b * (abs(distances[k] - s) < 1.2) for b, k, s in zip(brightness, labels, shift, strict=True)]
    ) + 0.4 * rng.normal(size=(len(owner), SIDE, SIDE))
    return Population.from_arrays(images[:, None].astype(np.float32), labels, owner)
