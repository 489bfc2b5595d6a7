"""Arithmetic on pytrees of NumPy arrays, and the one way to sum values over devices.

Floating-point sums depend on their order. Here a sum over the devices of a round always runs along one binary tree
over the position in the round's list: position i is leaf i, and a node is the sum of its two children. The result is
the same bits in whatever order the leaves arrive and wherever a complete subtree is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

__all__ = [
    "Tree",
    "TreeSum",
    "difference",
    "flatten_names",
    "inner_product",
    "is_finite",
    "map_names",
    "overlay_names",
    "quiet",
    "scale",
    "squared_distance",
    "squared_norm",
    "to_numpy",
    "total",
    "unflatten_names",
]

Tree = Any  # a pytree of arrays: model parameters, gradients, states

quiet = np.errstate(over="ignore", invalid="ignore")
"""Surrounds arithmetic whose result may be infinite or NaN: an outcome to record, not to warn about."""


def to_numpy(tree: Tree) -> Tree:
    """Return the tree with every leaf as a NumPy array (no copy where the memory can be shared)."""
    return _map(np.asarray, tree)


def scale(tree: Tree, factor: float) -> Tree:
    """Return factor * tree, in each leaf's own precision."""
    return _map(lambda leaf: leaf * leaf.dtype.type(factor), tree)


def _map(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return what `jax.tree.map` does, in less time: it is called several times for every device of a round."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [function(leaf) for leaf in leaves])


def difference(first: Tree, second: Tree) -> Tree:
    """Return first - second."""
    return jax.tree.map(np.subtract, first, second)


def total(first: Tree, second: Tree) -> Tree:
    """Return first + second."""
    return jax.tree.map(np.add, first, second)


def squared_norm(tree: Tree) -> float:
    """Return ||tree||^2 over all leaves, summed in double precision."""
    return float(sum(_squares(part) for leaf in jax.tree.leaves(tree) for part in _parts(np.asarray(leaf))))


def squared_distance(first: Tree, second: Tree) -> float:
    """Return ||first - second||^2: differences in each leaf's own precision, summed in double precision.

    >>> squared_distance({"a": np.array([3.0, 1.0])}, {"a": np.array([0.0, 5.0])})
    25.0
    """
    distance = 0.0
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        for part, other_part in zip(_parts(np.asarray(one)), _parts(np.asarray(other)), strict=True):
            distance += _squares(part - other_part)
    return distance


def _parts(leaf: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return a leaf in parts that stay in the cache, so that a large one is never copied at once."""
    if leaf.size <= _PART:
        return [leaf]
    flat = leaf.reshape(-1)
    return [flat[begin : begin + _PART] for begin in range(0, flat.size, _PART)]


def _squares(part: np.ndarray[Any, Any]) -> float:
    exact = part.astype(float)
    return _product(exact, exact)


def _product(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return <one, other> of arrays in double precision, with the same bits on any number of cores.

    OpenBLAS divides longer vectors among all cores, and its threads then wait for more without sleeping.
    """
    if one.size <= _ONE_CORE:
        return float(np.vdot(one, other))
    flat, other_flat = one.reshape(-1), other.reshape(-1)
    parts = [slice(begin, begin + _ONE_CORE) for begin in range(0, flat.size, _ONE_CORE)]
    return sum(float(np.vdot(flat[part], other_flat[part])) for part in parts)


_PART = 1 << 15
_ONE_CORE = 10_000  # the longest vectors that OpenBLAS multiplies on one core


def inner_product(first: Tree, second: Tree) -> float:
    """Return <first, second> over all leaves, summed in double precision.

    >>> inner_product({"a": np.array([1.0, 2.0]), "b": np.array(3.0)}, {"a": np.array([4.0, 5.0]), "b": np.array(6.0)})
    32.0
    """
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return float(sum(_product(np.asarray(one, float), np.asarray(other, float)) for one, other in pairs))


def is_finite(tree: Tree) -> bool:
    """Return whether no entry is NaN or infinite."""
    return all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


class TreeSum:
    """The sum of `count` leaves along the binary tree over positions 0..count-1.

    Leaves arrive in any order; two siblings are added as soon as both have arrived, so that at most about log2(count)
    partial sums are held when they arrive in order.

    >>> total = TreeSum(3)
    >>> for position, value in ((2, 4.0), (0, 1.0), (1, 2.0)):
    ...     total.add(position, np.float64(value))
    >>> float(total.result())
    7.0
    """

    def __init__(self, count: int) -> None:
        self._levels = max(count - 1, 0).bit_length()
        self._count = count
        self._nodes: dict[tuple[int, int], Tree] = {}

    def add(self, position: int, value: Tree, level: int = 0) -> None:
        """Add the leaf at `position`, or with `level` the sum of the complete subtree of 2**level leaves there."""
        node = (min(level, self._levels), position)  # a subtree may reach beyond the last leaf
        while node[0] < self._levels:
            sibling = (node[0], node[1] ^ 1)
            if sibling[1] << node[0] >= self._count:  # an empty subtree beyond the last leaf
                pass
            elif sibling not in self._nodes:
                break
            else:
                other = self._nodes.pop(sibling)
                first, second = (value, other) if node[1] < sibling[1] else (other, value)
                value = jax.tree.map(np.add, first, second)
            node = (node[0] + 1, node[1] >> 1)
        self._nodes[node] = value

    def result(self) -> Tree:
        """Return the sum; every leaf must have been added."""
        if list(self._nodes) != [(self._levels, 0)]:
            raise ValueError(f"the sum of {self._count} leaves is not complete: it has nodes {sorted(self._nodes)}")
        return self._nodes[(self._levels, 0)]


def flatten_names(tree: Tree) -> dict[str, np.ndarray[Any, Any]]:
    """Return the leaves by name: the path of keys, joined by dots ("layer.0.weight")."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def map_names(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Return the tree of function(name, leaf, ...) over the leaves of one or several trees of the same structure.

    >>> map_names(lambda name, leaf: leaf if name == "a" else None, {"a": 1, "b": 2})
    {'a': 1, 'b': None}
    """
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(_name(path), *leaves), tree, *rest)


def overlay_names(tree: Tree, named: Mapping[str, Any]) -> Tree:
    """Return the tree with the leaves that `named` has in place of its own.

    >>> overlay_names({"a": 1, "b": 2}, {"b": 3})
    {'a': 1, 'b': 3}
    """
    return map_names(named.get, tree)


def unflatten_names(named: dict[str, np.ndarray[Any, Any]], like: Tree) -> Tree:
    """Return a tree of the structure of `like` with the leaves of `flatten_names`; the inverse of it.

    Raises ValueError where a name is missing or left over, or a shape differs.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [_name(path) for path, _ in leaves]
    if missing := [name for name in names if name not in named]:
        raise ValueError(f"parameter {missing[0]!r} is missing")
    if extra := sorted(set(named) - set(names)):
        raise ValueError(f"parameter {extra[0]!r} is not part of the model")
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if named[name].shape != np.shape(leaf):
            raise ValueError(f"parameter {name!r} must have shape {np.shape(leaf)}; got {named[name].shape}")
    return jax.tree.unflatten(structure, [named[name] for name in names])


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
