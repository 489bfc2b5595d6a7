"""Replies as rows of numbers, for rules that compare complete replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.trees import Tree

__all__ = ["as_rows", "finite_rows", "from_row", "squared_distances"]


def as_rows(replies: Sequence[Tree]) -> NDArray[np.float64]:
    """Return the replies as (replies, numbers), in double precision."""
    return np.stack([np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)], dtype=float) for one in replies])


def from_row(row: NDArray[np.float64], like: Tree) -> Tree:
    """Return a row as a tree with the shapes and types of another one.

    >>> from_row(np.array([1.0, 2.0]), {"a": np.float32(0), "b": np.zeros(1)})
    {'a': np.float32(1.0), 'b': array([2.])}
    """
    leaves, structure = jax.tree.flatten(like)
    parts = np.split(row, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    shaped: list[Any] = [
        part.reshape(np.shape(leaf)).astype(np.asarray(leaf).dtype)[()]
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shaped)


def finite_rows(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[Any, Any]:
    """Return the rows that are finite, with their weights; all of them where none is."""
    finite = np.isfinite(rows).all(axis=1)
    return (rows[finite], weights[finite] / weights[finite].sum()) if finite.any() else (rows, weights)


def squared_distances(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ||a - b||^2 of all pairs of rows, infinity where a difference is not a number.

    >>> squared_distances(np.array([[0.0], [3.0]])).tolist()
    [[0.0, 9.0], [9.0, 0.0]]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.array([((rows - row) ** 2).sum(axis=1) for row in rows])
    found[~np.isfinite(found)] = np.inf
    np.fill_diagonal(found, 0.0)
    return found
