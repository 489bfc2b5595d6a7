"""Groups of small devices: neighbours in the round's list that are solved together (`small_devices`).

A group comes from one aligned piece of the list, a complete subtree of the merge tree, so that its replies are added up
as arrays. Where a large device stands between small ones, the group gives the sums of the subtrees without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.lines import Subtree, scale_lines, subtree_sums, sum_lines
from fedprox.core.trees import Tree
from fedprox.engines.device_side import Task
from fedprox.engines.small_devices import FEWEST, GroupReply
from fedprox.engines.task_list import TaskList

__all__ = ["Group", "balanced_level", "find_groups", "group_level"]

_UNEVEN = 1.05  # how much more than its share one worker may be given to save calls


@dataclass(frozen=True, eq=False)
class Group:
    """Small devices of one piece of the round's list."""

    begin: int  # the first position of the piece
    positions: NDArray[np.int64]
    listed: TaskList  # the tasks of the round
    adds: NDArray[np.bool_]  # over the piece: whose values are in the group's sums; zero of those that are not asked

    @classmethod
    def of_one(cls) -> Group:
        """Return the group of the first device with one step, to compile what groups need."""
        one = TaskList.of([Task(device=0, budget=1, weight=1.0, mass=1.0)])
        return cls(0, np.zeros(1, np.int64), one, np.ones(1, bool))

    def put(self, column: list[Any], values: Sequence[Any]) -> None:
        """Put the devices' values, if there are any, where they belong in a column over the round's list."""
        if len(values) == len(self.adds):  # all devices of the piece
            column[self.span] = values
            return
        for position, value in zip(self.positions.tolist(), values, strict=True) if values else ():
            column[position] = value

    @property
    def span(self) -> slice:
        """The positions of the piece."""
        return slice(self.begin, self.begin + len(self.adds))

    @property
    def _where(self) -> slice | NDArray[np.int64]:
        return self.span if len(self.positions) == len(self.adds) else self.positions

    @cached_property
    def tasks(self) -> TaskList:
        """The tasks of the group."""
        return self.listed.take(self._where)

    @cached_property
    def steps(self) -> int:
        """The steps of all devices of the group."""
        return int(self.listed.budgets[self._where].sum())

    @cached_property
    def adds_all(self) -> bool:
        """Whether no device of the piece is solved by itself."""
        return bool(self.adds.all())

    @property
    def level(self) -> int:
        """The level of the subtree that the piece is."""
        return (len(self.adds) - 1).bit_length()

    def sums(self, given: GroupReply, most: int) -> tuple[list[Subtree], list[Subtree]]:
        """Return what the replies add to the two sums of the round; no piece has more than `most` positions."""
        pairs = (given.averaged, self.tasks.weights), (given.summed, self.tasks.masses)
        averaged, summed = (self._sums(scale_lines(*pair), most) for pair in pairs)
        return averaged, summed

    def _sums(self, lines: Tree, most: int) -> list[Subtree]:
        count = len(self.adds)
        if not self.adds_all:
            return list(subtree_sums(self._placed(lines, count), self.adds))
        return [Subtree(self.level, 0, sum_lines(self._placed(lines, most)))]

    def _placed(self, lines: Tree, count: int) -> Tree:
        """Return `count` lines for the positions of the piece, zero for devices that are not in the group.

        Beyond the last position they are -0: adding it changes no number, not even the sign of a zero.
        """
        length, own = len(self.adds), self.positions - self.begin

        def place(leaf: NDArray[Any]) -> NDArray[Any]:
            placed = np.empty((count, *leaf.shape[1:]), leaf.dtype)
            placed[:length] = 0.0
            placed[length:] = -0.0
            placed[own] = leaf
            return placed

        return lines if len(own) == count else jax.tree.map(place, lines)


def find_groups(tasks: TaskList, small: NDArray[np.bool_], level: int) -> list[Group]:
    """Return the groups of a round in pieces of 2**level positions; `small` says which devices are."""
    groups = []
    for begin in range(0, len(tasks), 1 << level):
        piece = slice(begin, begin + (1 << level))
        positions = begin + small[piece].nonzero()[0]
        if len(positions) >= FEWEST:
            groups.append(Group(begin, positions, tasks, small[piece] | ~tasks.asked[piece]))
    return groups


def group_level(count: int, workers: int, most: int) -> int:
    """Return the largest level of chunks of at most `most` devices that leaves each of several workers two of them.

    0 where such a chunk is too small for a group.

    >>> group_level(1000, 1, 256), group_level(1000, 2, 256), group_level(100, 1, 256), group_level(10, 1, 256)
    (8, 8, 7, 0)
    """
    least = 2 * workers if workers > 1 else 1
    level = 0
    while 2 << level <= most and -(-count >> (level + 1)) >= least and 1 << level < count:
        level += 1
    return level if min(count, 1 << level) >= FEWEST else 0


def balanced_level(costs: NDArray[np.int64], workers: int, most: int) -> int:
    """Return `group_level`, or a larger level at which chunks are fewer and still take all workers equally long.

    >>> balanced_level(np.ones(1000, int), 2, 1024), balanced_level(np.ones(600, int), 2, 1024)
    (9, 7)
    """
    least = group_level(len(costs), workers, most)
    share = int(costs.sum()) / workers
    for level in range(most.bit_length() - 1, least, -1) if least else ():
        busy = [0] * workers
        for chunk in sorted(np.add.reduceat(costs, range(0, len(costs), 1 << level)).tolist(), reverse=True):
            busy[busy.index(min(busy))] += chunk
        if max(busy) <= share * _UNEVEN:
            return level
    return least
