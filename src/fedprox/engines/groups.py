"""Groups of small devices: neighbours in the round's list that are solved for together (`small_devices`).

A group comes from one aligned piece of the list, a whole subtree of the merge tree, so that its replies are added up as
arrays. Where a large device stands between small ones, the group gives the sums of the subtrees without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.lines import Subtree, scale_lines, subtree_sums
from fedprox.core.trees import Tree
from fedprox.engines.small_devices import GroupReply
from fedprox.engines.task_list import TaskList

__all__ = ["Group", "find_groups", "group_level"]

_FEWEST = 4  # devices that are worth a group


@dataclass(frozen=True)
class Group:
    """Small devices of one piece of the round's list."""

    begin: int  # the first position of the piece
    positions: NDArray[np.int64]
    tasks: TaskList
    adds: NDArray[np.bool_]  # over the piece: whose values are in the group's sums; zero of those that are not asked

    def sums(self, given: GroupReply) -> tuple[list[Subtree], list[Subtree]]:
        """Return what the replies add to the two sums of the round."""
        pairs = (given.averaged, self.tasks.weights), (given.summed, self.tasks.masses)
        averaged, summed = (list(subtree_sums(self._placed(scale_lines(*pair)), self.adds)) for pair in pairs)
        return averaged, summed

    def _placed(self, lines: Tree) -> Tree:
        """Return a line for every position of the piece, zero for those that are not in the group."""
        count = len(self.adds)
        if len(self.positions) == count:
            return lines

        def place(leaf: NDArray[Any]) -> NDArray[Any]:
            placed = np.zeros((count, *leaf.shape[1:]), leaf.dtype)
            placed[self.positions - self.begin] = leaf
            return placed

        return jax.tree.map(place, lines)


def find_groups(tasks: TaskList, small: NDArray[np.bool_], level: int) -> list[Group]:
    """Return the groups of a round in pieces of 2**level positions; `small` says which devices are."""
    groups = []
    for begin in range(0, len(tasks), 1 << level):
        piece = slice(begin, begin + (1 << level))
        positions = begin + np.flatnonzero(small[piece])
        if len(positions) >= _FEWEST:
            groups.append(Group(begin, positions, tasks.take(positions), small[piece] | ~tasks.asked[piece]))
    return groups


def group_level(count: int, workers: int, most: int) -> int:
    """Return the largest level of chunks of at most `most` devices that leaves each of several workers two of them.

    >>> group_level(1000, 1, 256), group_level(1000, 2, 256), group_level(100, 1, 256), group_level(10, 2, 256)
    (8, 8, 7, 1)
    """
    least = 2 * workers if workers > 1 else 1
    level = 0
    while 2 << level <= most and -(-count >> (level + 1)) >= least and 1 << level < count:
        level += 1
    return level
