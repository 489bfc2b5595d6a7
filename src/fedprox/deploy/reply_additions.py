"""What a reply adds, to the model and to what the server and the method remember.

A device sends its iterate w_k and how many steps it took. What a method makes of them need not be as short as
w_k - w^t: FedNova and SCAFFOLD divide by the steps, so that a device that claims one step in place of twenty epochs
adds several hundred times its move. So the merge itself is asked. With r_k the reply of device k and r_k^0 the one of
a device that did all its steps and stayed where it began,

    model_k  = ||w(r_1, ..., r_k, ...) - w(r_1, ..., r_k^0, ...)|| / weight_k
    server_k = ||s(r_1, ..., r_k, ...) - s(r_1, ..., r_k^0, ...)|| / weight_k
    device_k = ||state_k - state_k^0||

where w and s are the model and the server's memory after the merge. For methods that average models, model_k is
||w_k - w^t||. It is the same for every method, rule and own part, since nothing of them is asked but to merge.

Where the merge of all replies is not finite, these distances say nothing of a single one. Then the reply without which
it would be finite adds infinitely much, or, where there is no such one, the reply that is furthest from r_k^0; of the
others only device_k is measured, until that reply has been refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedprox.core.trees import Tree, is_finite
from fedprox.methods import Received, Reply

__all__ = ["Contribution", "measure_additions"]


class Contribution(NamedTuple):
    """A device's reply to a round beside the one it would have given had it not moved."""

    received: Received
    state: Tree  # what the device remembers from now on
    still: Reply

    @property
    def replaced(self) -> list[Received]:
        """The reply of the device that did not move; none where the method has no finite one for it."""
        if not is_finite((self.still.averaged, self.still.summed)):
            return []
        return [self.received._replace(reply=self.still._replace(state=None))]


def measure_additions(
    contributions: Sequence[Contribution], merge: Callable[[Sequence[Received]], tuple[Tree, Tree]]
) -> list[dict[str, float]]:
    """Return for each reply of a round what it adds to the model, the server's memory and the device's memory.

    Args:
      contributions: those that are to be merged.
      merge: gives the model and the server's memory after a merge of replies, of none as they were.

    >>> def mean(received):
    ...     return sum(one.weight * one.reply.averaged for one in received), ()
    >>> replies = [Received(k, Reply(np.float64(w)), 0.5, 0.5, 1) for k, w in enumerate([1.0, 5.0])]
    >>> still = Reply(np.float64(2.0))
    >>> [added["model"] for added in measure_additions([Contribution(one, None, still) for one in replies], mean)]
    [1.0, 3.0]
    """
    everything = [one.received for one in contributions]
    without = [
        merge([*everything[:place], *one.replaced, *everything[place + 1 :]]) for place, one in enumerate(contributions)
    ]
    model, server = merge(everything)
    found = [{"device": _distance(one.state, one.still.state)} for one in contributions]
    if contributions and not is_finite((model, server)):
        found[_find_culprit(contributions, without)]["model"] = math.inf
        return found
    for one, added, (model_without, server_without) in zip(contributions, found, without, strict=True):
        weight = max(one.received.weight, np.finfo(float).tiny)
        added["model"] = _distance(model, model_without) / weight
        added["server"] = _distance(server, server_without) / weight
    return found


def _find_culprit(contributions: Sequence[Contribution], without: Sequence[tuple[Tree, Tree]]) -> int:
    """Return the place of the reply that makes a merge infinite: the furthest, of those whose absence would help."""

    def blame(place: int) -> tuple[bool, float]:
        one = contributions[place]
        reply, still = one.received.reply, one.still
        return is_finite(without[place]), _distance((reply.averaged, reply.summed), (still.averaged, still.summed))

    return max(range(len(contributions)), key=blame)


def _distance(first: Tree, second: Tree) -> float:
    """Return the distance of two trees in double precision, infinite where they are not of the same form or finite."""
    one, other = jax.tree.leaves(first), jax.tree.leaves(second)
    if [np.shape(leaf) for leaf in one] != [np.shape(leaf) for leaf in other]:
        return math.inf
    squares = 0.0
    for leaf, other_leaf in zip(one, other, strict=True):
        part = np.asarray(leaf, np.float64) - np.asarray(other_leaf, np.float64)
        squares += float(np.vdot(part, part))
    return math.sqrt(squares) if math.isfinite(squares) else math.inf
