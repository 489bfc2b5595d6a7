"""The weighted geometric median (Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", 2022).

    w = argmin_z sum_k weight_k ||z - w_k||

by the smoothed Weiszfeld algorithm from the weighted mean on:

    z <- sum_k b_k w_k / sum_k b_k,        b_k = weight_k / max(smoothing, ||z - w_k||)

It withstands devices with less than half of the weight. Replies that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.config.fields import Count, Positive
from fedprox.core.trees import Tree
from fedprox.methods.merging.distances import as_rows, finite_rows, from_row
from fedprox.methods.merging.rule import MergeRule

__all__ = ["geometric_median"]


def geometric_median(iterations: Count = 32, smoothing: Positive = 1e-6) -> MergeRule:
    """Return the weighted geometric median.

    >>> float(geometric_median().merge([np.float32(x) for x in (1, 2, 1e6)], np.array([0.3, 0.4, 0.3])))
    2.0
    """
    return _GeometricMedian(
        "geometric_median", needs_every_reply=True, compares_replies=True, iterations=iterations, smoothing=smoothing
    )


@dataclass(frozen=True)
class _GeometricMedian(MergeRule):
    iterations: int = 32
    smoothing: float = 1e-6

    def survives(self, replies: int) -> int:
        return (replies - 1) // 2

    def merge(self, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        rows, share = finite_rows(as_rows(replies), weights)
        found = share @ rows
        for _ in range(self.iterations):
            pull = share / np.maximum(np.linalg.norm(rows - found, axis=1), self.smoothing)
            found = pull @ rows / pull.sum()
        return from_row(found, replies[0])
