"""Table 1 of the paper: how many devices and samples each data set has, and how samples are spread over devices.

The paper's devices come from random draws whose seeds were not published, and sizes with such heavy tails vary greatly
from draw to draw. So a data set here is drawn `TRIES` times (sizes only, which is cheap) and the draw nearest to Table
1 is used. It depends on the data seed: another seed gives another set of draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

__all__ = ["PAPER", "TRIES", "Statistics", "nearest_draw", "statistics"]

TRIES = 4000


@dataclass(frozen=True)
class Statistics:
    """A row of Table 1. Samples are training and test samples together."""

    devices: int
    samples: int
    mean: float
    deviation: float


PAPER = {
    "mnist": Statistics(1000, 69035, 69, 106),
    "femnist": Statistics(200, 18345, 92, 159),
    "shakespeare": Statistics(143, 517106, 3616, 6808),
    "sent140": Statistics(772, 40783, 53, 32),
}


def statistics(sizes: NDArray[Any]) -> Statistics:
    """Return the row of Table 1 for devices of these sizes.

    >>> import numpy as np
    >>> statistics(np.array([1, 3]))
    Statistics(devices=2, samples=4, mean=2.0, deviation=1.0)
    """
    return Statistics(len(sizes), int(sizes.sum()), float(sizes.mean()), float(sizes.std()))


def nearest_draw(target: Statistics, draw: Callable[[int], NDArray[Any]], tries: int = TRIES) -> int:
    """Return the number of the draw whose mean and deviation are nearest to the target's, as shares of them.

    `draw(attempt)` returns the sizes of all devices.
    """

    def distance(attempt: int) -> float:
        found = statistics(draw(attempt))
        return abs(found.mean / target.mean - 1) + abs(found.deviation / target.deviation - 1)

    return min(range(tries), key=distance)
