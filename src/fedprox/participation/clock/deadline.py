"""When a round ends at the latest: after a fixed time, or when a share of the chosen devices can have finished.

"q0.8" is the time by which 80% of the listed devices can have done all their work and sent it: the ceil(0.8 K)-th
smallest of the K times. "q1" waits for the slowest.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["deadline_seconds"]


def deadline_seconds(deadline: float | str, needed: NDArray[np.float64]) -> float:
    """Return the deadline in seconds from the start of the round; `needed` is what each device needs for all its work.

    >>> deadline_seconds("q0.5", np.array([4.0, 1.0, 2.0, 3.0])), deadline_seconds(60, np.array([4.0]))
    (2.0, 60.0)
    """
    if not isinstance(deadline, str):
        return float(deadline)
    share = float(deadline.removeprefix("q"))
    place = max(1, math.ceil(share * len(needed) - 1e-9))  # 0.7 * 10 is a little more than 7
    return float(np.sort(needed)[place - 1])
