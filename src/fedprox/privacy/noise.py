"""Gaussian noise, and where its randomness comes from.

A simulation draws from a counter-based stream for (seed, purpose, round, device), as it draws everything else, so that
a run can be repeated. Such noise gives no protection: a reader of the seed, which is in the run's config, can
subtract it. Where real devices take part it must come from the operating system's randomness, which cannot be repeated.
So every function that adds noise takes its source as an argument: `seeded_normals` or `system_normals`.

Noise is added in double precision and the result rounded once to the model's own. The published attacks on noise in
floating point read the last bits of a double; single precision cuts them off. That makes the attacks impractical; it is
not a proof.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, generator
from fedprox.core.trees import Tree

__all__ = ["Normals", "seeded_normals", "system_normals", "with_noise"]

Normals = Callable[[int], NDArray[np.float64]]
"""A source of noise: n -> n independent standard normal numbers, different at every call."""


def seeded_normals(seed: int, purpose: Purpose, round: int, device: int = 0) -> Normals:
    """Return the source for simulations: the same numbers for the same (seed, purpose, round, device).

    >>> draw = seeded_normals(0, Purpose.SERVER_NOISE, round=1)
    >>> again = seeded_normals(0, Purpose.SERVER_NOISE, round=1)
    >>> bool((draw(3) == again(3)).all()), bool((draw(3) == again(6)[:3]).all())
    (True, True)
    """
    return generator(seed, purpose, round, device).standard_normal


def system_normals(count: int) -> NDArray[np.float64]:
    """Draw from the operating system's randomness, for rounds with real devices; it cannot be repeated.

    Two uniform numbers make two normal ones (Box and Muller). With 53 bits each, none is beyond 8.6.

    >>> system_normals(3).shape
    (3,)
    """
    pairs = -(-count // 2)
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    radius2, turn = ((words >> np.uint64(11)) + np.uint64(1)) * 2.0**-53  # in (0, 1]: its logarithm is finite
    radius, angle = np.sqrt(-2 * np.log(radius2)), 2 * np.pi * turn
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def with_noise(tree: Tree, deviation: float, normals: Normals) -> Tree:
    """Return the tree with independent Gaussian noise of this standard deviation on every entry."""

    def noised(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        return (leaf + deviation * normals(leaf.size).reshape(leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(noised, tree)
