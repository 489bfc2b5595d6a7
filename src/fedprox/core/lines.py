"""The trees of many devices as one tree: every leaf has a first axis with a line for each device.

What would be a few microseconds of Python for every device becomes array arithmetic. Each result has the bits that the
functions of `fedprox.core.trees` give device by device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.compilation import compiled
from fedprox.core.trees import Tree

__all__ = [
    "Subtree",
    "pad_lines",
    "scale_lines",
    "split_lines",
    "stack_lines",
    "subtree_sums",
    "sum_lines",
    "take_lines",
    "view_lines",
]


def stack_lines(trees: Sequence[Tree]) -> Tree:
    """Return trees of one structure as lines.

    >>> stack_lines([{"a": np.array([1, 2])}, {"a": np.array([3, 4])}])["a"].tolist()
    [[1, 2], [3, 4]]
    """
    structure = jax.tree.structure(trees[0])
    leaves = zip(*map(jax.tree.leaves, trees), strict=True)
    return jax.tree.unflatten(structure, [np.stack(each) for each in leaves])


def split_lines(lines: Tree, count: int) -> list[Tree]:
    """Return the lines as separate trees, each with its own memory.

    >>> [each["a"].tolist() for each in split_lines({"a": np.array([[1, 2], [3, 4]])}, 2)]
    [[1, 2], [3, 4]]
    """
    leaves, structure = jax.tree.flatten(lines)
    return [jax.tree.unflatten(structure, [leaf[index].copy() for leaf in leaves]) for index in range(count)]


def view_lines(lines: Tree, count: int) -> list[Tree]:
    """Return the lines as trees that share their memory.

    >>> [each["a"].tolist() for each in view_lines({"a": np.array([[1, 2], [3, 4]])}, 2)]
    [[1, 2], [3, 4]]
    """
    leaves, structure = jax.tree.flatten(lines)
    return [jax.tree.unflatten(structure, [leaf[index] for leaf in leaves]) for index in range(count)]


def take_lines(lines: Tree, which: NDArray[np.int64] | slice | int) -> Tree:
    """Return some of the lines, or with a number the tree of one device."""
    return jax.tree.map(lambda leaf: leaf[which], lines)


def pad_lines(lines: Tree, count: int) -> Tree:
    """Return `count` lines, those that were missing zero."""

    def pad(leaf: NDArray[Any]) -> NDArray[Any]:
        padded = np.zeros((count, *leaf.shape[1:]), leaf.dtype)
        padded[: len(leaf)] = leaf
        return padded

    return jax.tree.map(pad, lines)


def scale_lines(lines: Tree, factors: NDArray[np.float64]) -> Tree:
    """Return each line times its factor, in each leaf's own precision.

    >>> scale_lines(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([2.0, 10.0])).tolist()
    [[2.0, 4.0], [30.0, 40.0]]
    """

    def scaled(leaf: NDArray[Any]) -> NDArray[Any]:
        product: NDArray[Any] = leaf * factors.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
        return product

    return jax.tree.map(scaled, lines)


class Subtree(NamedTuple):
    """The sum over a whole subtree of the binary tree along which `TreeSum` adds up."""

    level: int
    node: int  # its number among those of its level
    value: Tree


def subtree_sums(lines: Tree, given: NDArray[np.bool_]) -> Iterator[Subtree]:
    """Yield the sums of the largest subtrees whose leaves are all given; the others may be any numbers.

    The lines are the leaves 0, 1, ... of the tree, and it ends with the last of them.

    >>> lines = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    >>> [tuple(map(float, each)) for each in subtree_sums(lines, np.array([True, True, True, False, True]))]
    [(0.0, 2.0, 4.0), (1.0, 0.0, 3.0), (2.0, 1.0, 16.0)]
    """
    leaves, structure = jax.tree.flatten(lines)
    if not leaves:
        yield Subtree(0, 0, lines)
        return
    level = 0
    while given.any():
        above = _pairs(np.logical_and, given) if len(given) > 1 else np.zeros(1, bool)
        for index in np.flatnonzero(given & ~np.repeat(above, 2)[: len(given)]).tolist():
            yield Subtree(level, index, jax.tree.unflatten(structure, [leaf[index] for leaf in leaves]))
        if above.any():
            leaves = [_pairs(np.add, leaf) for leaf in leaves]
        given, level = above, level + 1


def sum_lines(lines: Tree) -> Tree:
    """Return the sum over all lines, a power of two of them, along the tree; in single precision as one program.

    >>> float(sum_lines(np.array([1.0, 2.0, 4.0, 8.0], np.float32)))
    15.0
    """
    leaves, structure = jax.tree.flatten(lines)
    single = [leaf.dtype == np.float32 for leaf in leaves]  # others would lose precision there
    sums = iter(_sum_program()([leaf for leaf, is_single in zip(leaves, single, strict=True) if is_single]))
    both = zip(leaves, single, strict=True)
    return jax.tree.unflatten(structure, [np.asarray(next(sums)) if own else _sum(leaf) for leaf, own in both])


@lru_cache(maxsize=1)
def _sum_program() -> Callable[..., Any]:
    def add_up(leaf: jax.Array) -> jax.Array:
        while len(leaf) > 1:
            leaf = leaf.reshape(len(leaf) // 2, 2, *leaf.shape[1:])
            leaf = leaf[:, 0] + leaf[:, 1]
        return leaf[0]

    return compiled(lambda leaves: [add_up(leaf) for leaf in leaves])


def _sum(leaf: NDArray[Any]) -> NDArray[Any]:
    while len(leaf) > 1:
        leaf = _pairs(np.add, leaf)
    total: NDArray[Any] = leaf[0]
    return total


def _pairs(operation: np.ufunc, leaf: NDArray[Any]) -> NDArray[Any]:
    """Return `operation` of each pair of neighbours; a last one without a neighbour stays as it is."""
    pairs = len(leaf) // 2
    made = np.empty((len(leaf) - pairs, *leaf.shape[1:]), leaf.dtype)
    operation(leaf[0 : 2 * pairs : 2], leaf[1 : 2 * pairs : 2], out=made[:pairs])
    made[pairs:] = leaf[2 * pairs :]
    return made
