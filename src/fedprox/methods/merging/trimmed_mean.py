"""The weighted coordinate-wise trimmed mean (Yin et al., "Byzantine-Robust Distributed Learning", 2018, with weights).

Entry by entry, the values are sorted; those in the first and in the last `trim` of the weight are left out:

    merged = sum_k kept_k v_k / (1 - 2 trim),        kept_k = |[W_{k-1}, W_k] with [trim, 1 - trim]|

where W_k is the weight up to and with the k-th smallest value. A value at the edge counts in part. The rule withstands
devices with less than `trim` of the weight; a trim of 0 is the weighted mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprox.core.trees import Tree
from fedprox.methods.merging.rule import MergeRule

__all__ = ["trimmed_mean", "weighted_trimmed_mean"]

_ROUNDING = 1e-12  # what sums of weights may miss an edge by; an infinite value times it would count

Trim = Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False, description="a number in [0, 0.5)")]


def trimmed_mean(trim: Trim = 0.1) -> MergeRule:
    """Return the weighted coordinate-wise trimmed mean.

    >>> trimmed_mean(0.25).merge([np.float32(x) for x in (1, 2, 4, 1e6)], np.full(4, 0.25))
    np.float32(3.0)
    """
    return _TrimmedMean("trimmed_mean", needs_every_reply=True, trim=trim)


@dataclass(frozen=True)
class _TrimmedMean(MergeRule):
    trim: float = 0.1

    def survives(self, replies: int) -> int:
        return int(self.trim * replies + _ROUNDING)

    def merge(self, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        if self.trim == 0:
            return super().merge(replies, weights)
        return jax.tree.map(lambda *leaves: weighted_trimmed_mean(np.stack(leaves), weights, self.trim), *replies)


def weighted_trimmed_mean(values: NDArray[Any], weights: NDArray[np.float64], trim: float) -> Any:
    """Return the trimmed mean over the first axis of `values`; what is not a number counts as the largest.

    >>> weighted_trimmed_mean(np.array([9.0, 1.0, 2.0]), np.array([0.2, 0.4, 0.4]), 0.3)
    np.float64(1.75)
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0).astype(np.float64)
    share = (weights / weights.sum())[order]
    above = np.cumsum(share, axis=0)
    kept = np.minimum(above, 1 - trim) - np.maximum(above - share, trim)
    kept = np.where(kept > _ROUNDING, kept, 0.0)
    merged = np.where(kept > 0, ordered, 0.0)  # an infinite value without weight must not count
    return ((kept * merged).sum(axis=0) / kept.sum(axis=0)).astype(values.dtype)[()]
