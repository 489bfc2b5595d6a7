"""Sums over replies that are all available at once, as array arithmetic; the bits are those of `RoundSum`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.lines import scale_lines, stack_lines, subtree_sums
from fedprox.core.trees import Tree

__all__ = ["StackedReplies"]


class StackedReplies:
    """The values of replies to be averaged or summed, one line for each position of the round's list that has a reply.

    >>> replies = StackedReplies([np.float32(1), np.float32(5)], np.array([0, 2]), count=3)
    >>> replies.shift(np.array([1]), np.float32(10))
    >>> replies.total(np.array([0.5, 0.5]))
    np.float32(8.0)
    """

    def __init__(self, values: Sequence[Tree], positions: NDArray[np.int64], count: int) -> None:
        self._lines = stack_lines(values)
        self._positions, self._count = positions, count

    def shift(self, which: NDArray[np.int64], by: Tree) -> None:
        """Add a tree to some of the lines."""

        def add(leaf: NDArray[Any], own: NDArray[Any]) -> None:
            leaf[which] = leaf[which] + own

        jax.tree.map(add, self._lines, by)

    def total(self, factors: NDArray[np.float64]) -> Tree:
        """Return the sum of factor times value along the tree over the positions; those without a reply add zero."""
        lines = scale_lines(self._lines, factors)
        if len(self._positions) < self._count:
            lines = jax.tree.map(self._placed, lines)
        (whole,) = subtree_sums(lines, np.ones(self._count, bool))
        return whole.value

    def _placed(self, leaf: NDArray[Any]) -> NDArray[Any]:
        placed = np.zeros((self._count, *leaf.shape[1:]), leaf.dtype)
        placed[self._positions] = leaf
        return placed
