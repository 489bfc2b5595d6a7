"""What users' functions return: trees of arrays, taken in the structure and the precision that they must have."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedprox.core.errors import RunError, short
from fedprox.core.trees import Tree, flatten_names

__all__ = ["check_arrays", "check_steps", "fitted"]


def fitted(tree: Tree, like: Tree, part: str, what: str = "parameters", of: str = "the model") -> Tree:
    """Return a tree in the precision of `like`; raises an error if names or shapes differ, or leaves are not numbers.

    >>> fitted({"a": 1}, {"a": np.float32(0)}, "merge of the method 'mine'")
    {'a': array(1., dtype=float32)}
    >>> fitted({"b": 1}, {"a": np.float32(0)}, "merge of the method 'mine'")
    Traceback (most recent call last):
    fedprox.core.errors.RunError: merge of the method 'mine' must return parameters with the names and shapes of the \
model ('a': ()); got none
    """
    expected = {name: leaf.shape for name, leaf in flatten_names(like).items()}
    got = {name: leaf.shape for name, leaf in flatten_names(tree).items()}
    structure: Any = jax.tree.structure(like)
    if got != expected or structure != jax.tree.structure(tree):
        differing = [name for name in {**expected, **got} if expected.get(name) != got.get(name)]
        name = differing[0] if differing else "structure"
        raise RunError(
            f"{part} must return {what} with the names and shapes of {of} ({name!r}: {expected.get(name, 'none')}); "
            f"got {got.get(name, 'none')}"
        )
    check_arrays(tree, part, what)
    return jax.tree.map(_in_precision, tree, like)


def check_arrays(tree: Tree, part: str, what: str) -> None:
    """Refuse a tree with a leaf that is not an array of real numbers."""
    for name, leaf in flatten_names(tree).items():
        if not np.can_cast(leaf.dtype, np.float64, "same_kind") or leaf.dtype.kind in "mM":
            where = f"{name!r} has" if name else "got"
            raise RunError(f"{part} must return arrays of numbers as {what}; {where} {leaf.dtype}")


def check_steps(steps: Any, budget: int, part: str) -> int:
    """Return the steps that a solver says it took, which must be within its budget."""
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or not 0 <= steps <= budget:
        raise RunError(f"{part} must take between 0 and {budget} steps, its budget; got {short(steps)}")
    return int(steps)


def _in_precision(leaf: Any, like: Any) -> Any:
    dtype = np.asarray(like).dtype
    return leaf if getattr(leaf, "dtype", None) == dtype else np.asarray(leaf, dtype)
