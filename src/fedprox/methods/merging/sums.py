"""Sums over a round's replies, added up as they arrive along the fixed tree over positions."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.lines import Subtree
from fedprox.core.trees import Tree, TreeSum

__all__ = ["ReplySums", "RoundSum"]


class RoundSum:
    """The sum over a round's list of values that arrive in any order; a device without a value adds nothing.

    A value is that of one position or, with a `level`, the sum over an aligned chunk of 2**level positions.
    """

    def __init__(self, count: int, level: int = 0) -> None:
        self._total = TreeSum(count)
        self._level = level
        self._missing = np.ones(-(-count >> level), bool)
        self._last: Tree = None

    def add(self, index: int, value: Tree) -> None:
        """Put in the value of a position or chunk."""
        if not 0 <= index < len(self._missing) or not self._missing[index]:
            raise KeyError(index)
        self._missing[index] = False
        self._last = value
        if jax.tree.leaves(value):
            self._total.add(index, value, self._level)

    def add_subtrees(self, begin: int, parts: Iterable[Subtree], given: NDArray[np.bool_]) -> None:
        """Put in the sums of subtrees (`subtree_sums`) of the positions from `begin` on; they hold those `given`.

        `begin` is a multiple of a power of two that is not less than the number of positions.
        """
        self._missing[begin : begin + len(given)] &= ~given
        for part in parts:
            self._last = part.value
            if jax.tree.leaves(part.value):
                self._total.add((begin >> part.level) + part.node, part.value, part.level)

    def result(self) -> Tree:
        """Return the sum, None if there was no value."""
        if not jax.tree.leaves(self._last):
            return self._last
        missing = np.flatnonzero(self._missing).tolist()
        nothing = jax.tree.map(np.zeros_like, self._last) if missing else None
        for index in missing:
            self._total.add(index, nothing, self._level)
        return self._total.result()


class ReplySums:
    """The two sums of a round: weight_k times what is averaged, and p_k times what is summed."""

    def __init__(self, count: int, level: int = 0) -> None:
        self._averaged, self._summed = RoundSum(count, level), RoundSum(count, level)

    def add(self, index: int, averaged: Tree, summed: Tree) -> None:
        """Put in the weighted values of a position or chunk."""
        self._averaged.add(index, averaged)
        self._summed.add(index, summed)

    def add_subtrees(
        self, begin: int, averaged: Iterable[Subtree], summed: Iterable[Subtree], given: NDArray[np.bool_]
    ) -> None:
        """Put in sums of subtrees of the positions from `begin` on."""
        self._averaged.add_subtrees(begin, averaged, given)
        self._summed.add_subtrees(begin, summed, given)

    def result(self) -> tuple[Tree, Tree]:
        """Return both sums, None if there was no value."""
        return self._averaged.result(), self._summed.result()
