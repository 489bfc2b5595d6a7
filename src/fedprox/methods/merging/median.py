"""The weighted coordinate-wise median (Yin et al., "Byzantine-Robust Distributed Learning", 2018, with weights).

Entry by entry, the merged value is the one at which the weights of the smaller and of the larger values balance. As
long as the devices that send arbitrary values have less than half of the weight, every entry lies between values that
other devices sent. A value that is not a number counts as the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.trees import Tree
from fedprox.methods.merging.rule import MergeRule

__all__ = ["median", "weighted_median"]

_ROUNDING = 1e-12  # weights that should sum to one half may miss it by this much


def median() -> MergeRule:
    """Return the weighted coordinate-wise median.

    >>> median().merge([np.float32(1), np.float32(2), np.float32(1e6)], np.array([0.3, 0.3, 0.4]))
    np.float32(2.0)
    """
    return _Median("median", needs_every_reply=True)


@dataclass(frozen=True)
class _Median(MergeRule):
    def survives(self, replies: int) -> int:
        return (replies - 1) // 2

    def merge(self, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        return jax.tree.map(lambda *leaves: weighted_median(np.stack(leaves), weights), *replies)


def weighted_median(values: NDArray[Any], weights: NDArray[np.float64]) -> Any:
    """Return the median over the first axis of `values`; the middle of two values where they balance exactly.

    >>> weighted_median(np.array([4.0, 1.0, 2.0, 3.0]), np.full(4, 0.25))
    np.float64(2.5)
    >>> weighted_median(np.array([1.0, 2.0, 3.0]), np.array([0.2, 0.2, 0.6]))
    np.float64(3.0)
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    below = np.cumsum(weights[order], axis=0)  # (devices, ...) the weight up to and with each value
    half = weights.sum() / 2
    low, high = (
        np.take_along_axis(ordered, np.argmax(reached, axis=0)[None], axis=0)[0]
        for reached in (below >= half - _ROUNDING, below > half + _ROUNDING)
    )
    between = low + (high - low) * values.dtype.type(0.5)
    return np.where(low == high, low, between).astype(values.dtype)[()]
