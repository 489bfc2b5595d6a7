"""A bound on the influence of one device: its update, clipped to the L2 norm S over all parameters.

    clip(d) = d min(1, S / ||d||),        d = w_k - w^t

(McMahan et al., "Learning Differentially Private Recurrent Language Models", 2018: flat clipping.) The bound holds for
every update; one that is not finite counts as zero.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.core.trees import Tree, quiet, scale, squared_norm

__all__ = ["clip"]


@quiet
def clip(update: Tree, norm: float) -> Tree:
    """Return the update, shortened to the L2 norm `norm` where it is longer.

    >>> clip({"w": np.array([3.0, 0.0]), "b": np.array([4.0])}, 10.0)
    {'w': array([3., 0.]), 'b': array([4.])}
    >>> short = clip({"w": np.array([3.0, 0.0]), "b": np.array([4.0])}, 1.0)
    >>> short["w"].round(6), short["b"].round(6)
    (array([0.6, 0. ]), array([0.8]))
    """
    length = math.sqrt(squared_norm(update))
    if not math.isfinite(length):
        return jax.tree.map(np.zeros_like, update)
    if length <= norm:
        return update
    rounding = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(update))
    return scale(update, norm / length * (1 - 2 * rounding))  # never above the norm, whatever the rounding
