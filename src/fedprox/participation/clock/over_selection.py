"""Over-selection: a round asks more devices than it needs and ends with the first K replies.

    asked = floor(over_selection K + 1/2)

(Bonawitz et al., "Towards Federated Learning at Scale: System Design", 2019, ask 130% of the devices that they need.)
The round ends when K replies are in, or at the deadline where that is earlier. The others are then stragglers: methods
that drop stragglers lose their work, others merge it. Replies are counted by draws, as K is. If a device may stop
before its budget (`solver.gamma`), the round still ends as if it did not.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedprox.config.sections import SystemsConfig

__all__ = ["first_replies", "number_asked"]


def number_asked(systems: SystemsConfig, per_round: int) -> int:
    """Return how many devices a round asks for K replies.

    >>> number_asked(SystemsConfig(model="clock", server="over_selection"), 10), number_asked(SystemsConfig(), 10)
    (13, 10)
    """
    if systems.server != "over_selection":
        return per_round
    return math.floor(systems.over_selection * per_round + 0.5)


def first_replies(
    needed: NDArray[np.float64], arrives: NDArray[np.bool_], draws: NDArray[np.int64], count: int
) -> NDArray[np.bool_] | None:
    """Return which devices send the first `count` replies; None if there are fewer. Ties follow the list.

    Args:
      needed: the seconds until each device's reply.
      arrives: whether it arrives at all.
      draws: how many replies each counts for.

    >>> first_replies(np.array([3.0, 1.0, 2.0, 2.0]), np.array([True, True, True, True]), np.ones(4, int), 2)
    array([False,  True,  True, False])
    """
    order = np.argsort(np.where(arrives, needed, np.inf), kind="stable")[: int(arrives.sum())]
    counted = np.cumsum(draws[order])
    if len(order) == 0 or counted[-1] < count:
        return None
    first = np.zeros(len(needed), bool)
    first[order[: int(np.searchsorted(counted, count)) + 1]] = True
    return first
