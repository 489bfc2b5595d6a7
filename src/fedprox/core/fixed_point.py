"""The sum of many replies, independent of their order: fixed-point numbers in 64-bit integers.

A sum along a tree (`TreeSum`) has the same bits in every order, but holds every partial sum that waits for its sibling:
when n replies arrive in random order, about 0.4 n at once. Integers add up to the same result in every order, so here
each reply is rounded to multiples of 2^-42 and added to one running total:

    total <- total + round(2^42 weight reply)

Memory is that of the total, 8 bytes per parameter, and of a little scratch, however many replies there are. Totals of
parts of the replies add up exactly too, so that a tree of servers gives the bits of a single one. The cost is the
rounding, at most 2^-43 = 1.1e-13 per reply, and a limited range: every entry of a reply must lie between -2^20 and
2^20, about a million, and the weights must sum to at most 1, so that nothing can overflow. A reply outside this range,
or one with NaN, is refused and leaves the total as it was.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.trees import Tree

__all__ = ["FixedPointSum"]

_ONE = 2.0**42
_LIMIT = 2.0**20  # the largest total is 2^62
_SLACK = 1e-6  # weights that should sum to 1 may be rounded
_BLOCK = 1 << 15  # entries worked on at a time: the scratch stays in the processor's cache


class FixedPointSum:
    """The running sum of weight * reply over replies in any order; weights are >= 0 and sum to at most 1.

    >>> total = FixedPointSum(like={"w": np.zeros(2, np.float32)})
    >>> total.add({"w": np.array([1.0, 2.0], np.float32)}, weight=0.5)
    >>> total.add({"w": np.array([3.0, 0.0], np.float32)}, weight=0.25)
    >>> total.result()
    {'w': array([1.25, 1.  ], dtype=float32)}
    """

    def __init__(self, like: Tree) -> None:
        leaves = jax.tree.leaves(like)
        self._structure: Any = jax.tree.structure(like)
        self._shapes = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
        self._totals = [np.zeros(np.size(leaf), np.int64) for leaf in leaves]
        self._scaled, self._rounded = np.empty(_BLOCK, np.float64), np.empty(_BLOCK, np.int64)
        self.weight = 0.0  # of all replies so far

    def add(self, reply: Tree, weight: float) -> None:
        """Add weight * reply; a reply that is refused (ValueError) changes nothing."""
        leaves, structure = jax.tree.leaves(reply), jax.tree.structure(reply)
        shapes = [np.shape(leaf) for leaf in leaves]
        if structure != self._structure or shapes != [shape for shape, _ in self._shapes]:
            raise ValueError("a reply must have the names and shapes of the model")
        if not all(_is_within(leaf) for leaf in leaves):
            raise ValueError(f"every entry of a reply must lie between -{_LIMIT:.0f} and {_LIMIT:.0f}")
        self._take(weight)
        for total, leaf in zip(self._totals, leaves, strict=True):
            self._add_leaf(total, np.ravel(leaf), np.float64(weight * _ONE))

    def merge(self, other: FixedPointSum) -> None:
        """Add the total of other replies, exactly."""
        self._take(other.weight)
        for mine, theirs in zip(self._totals, other._totals, strict=True):
            np.add(mine, theirs, out=mine)

    def result(self) -> Tree:
        """Return the sum in the precision of the model."""
        leaves = [
            (total / _ONE).astype(dtype).reshape(shape)
            for total, (shape, dtype) in zip(self._totals, self._shapes, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def _take(self, weight: float) -> None:
        if not 0 <= weight <= 1 + _SLACK - self.weight:
            raise ValueError(f"weights must be >= 0 and sum to at most 1; got {weight} after {self.weight}")
        self.weight += weight

    def _add_leaf(self, total: NDArray[np.int64], leaf: NDArray[Any], factor: np.float64) -> None:
        for begin in range(0, len(leaf), _BLOCK):
            part = leaf[begin : begin + _BLOCK]
            scaled, rounded = self._scaled[: len(part)], self._rounded[: len(part)]
            np.multiply(part, factor, out=scaled)
            np.rint(scaled, out=scaled)
            np.copyto(rounded, scaled, casting="unsafe")
            total[begin : begin + _BLOCK] += rounded


def _is_within(leaf: Any) -> bool:
    """Return whether all entries are inside the range; NaN is not."""
    return np.size(leaf) == 0 or bool(np.min(leaf) > -_LIMIT and np.max(leaf) < _LIMIT)
