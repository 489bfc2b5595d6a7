"""Chunks of a round: aligned pieces of its list, each a complete subtree of the merge tree.

A chunk of level L holds positions i 2^L to (i + 1) 2^L - 1, so that its sum is the node i of level L of the binary tree
along which `TreeSum` adds up. There are several chunks for each worker: the next chunk goes to the worker that is free,
so that a slow worker delays only its current chunk. The chunk with the most work goes first. If the devices have little
to do, there are fewer chunks: each costs a call and the transfer of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedprox.engines.device_side import Task

__all__ = ["Chunk", "chunk_level", "chunks"]

_FEWEST, _MOST = 2, 4  # chunks, at least, for each worker, where the round has enough devices
_CALL, _BYTE = 0.02, 1e-8  # seconds: a chunk should have more work than a few calls and the transfer of a model take


@dataclass(frozen=True)
class Chunk:
    """The positions from `index << level` on; None is a device that is not asked."""

    index: int
    level: int
    tasks: tuple[Task | None, ...]

    @property
    def span(self) -> slice:
        """The positions."""
        return slice(self.index << self.level, (self.index << self.level) + len(self.tasks))

    @property
    def asked(self) -> list[tuple[int, Task]]:
        """Position and task of the devices that are asked."""
        return [(position, task) for position, task in enumerate(self.tasks, self.span.start) if task is not None]

    @property
    def work(self) -> int:
        """The chunk's budget, in mini-batch steps."""
        return sum(task.budget for _, task in self.asked)

    @property
    def bare(self) -> tuple[Task | None, ...]:
        """The tasks without what the devices remember."""
        return tuple(task and task._replace(state=None) for task in self.tasks)


def chunk_level(count: int, workers: int, seconds: float = math.inf, size: int = 0) -> int:
    """Return the largest level that leaves several chunks for each worker.

    `seconds` is the work of all devices of the round together, `size` that of the model in bytes.

    >>> chunk_level(10, 2), chunk_level(100, 2), chunk_level(100, 32)
    (0, 3, 0)
    >>> chunk_level(10, 2, seconds=0.01), chunk_level(100, 2, seconds=0.01)
    (1, 5)
    """
    worthwhile = seconds / (_CALL + _BYTE * size) / workers
    least = workers * min(max(worthwhile, _FEWEST), _MOST)
    level = 0
    while -(-count >> (level + 1)) >= least:
        level += 1
    return level


def chunks(tasks: Sequence[Task | None], level: int) -> list[Chunk]:
    """Divide a round's list.

    >>> [chunk.tasks for chunk in chunks([None] * 5, level=1)]
    [(None, None), (None, None), (None,)]
    """
    size = 1 << level
    return [
        Chunk(index, level, tuple(tasks[begin : begin + size]))
        for index, begin in enumerate(range(0, len(tasks), size))
    ]
