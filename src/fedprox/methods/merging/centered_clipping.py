"""Centred clipping (Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", 2021).

Starting from a centre v, the model that was sent to the devices (zero for what a method sums),

    v <- v + sum_k weight_k (w_k - v) min(1, radius / ||w_k - v||)

repeated a few times: no device moves the model by more than its weight times the radius. The radius 0 stands for the
weighted median of the distances ||w_k - v||, which needs no tuning. Replies that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.config.fields import Count, NotNegative
from fedprox.core.trees import Tree
from fedprox.methods.merging.distances import as_rows, finite_rows, from_row
from fedprox.methods.merging.median import weighted_median
from fedprox.methods.merging.rule import MergeRule

__all__ = ["centered_clipping"]


def centered_clipping(radius: NotNegative = 0.0, iterations: Count = 3) -> MergeRule:
    """Return centred clipping.

    >>> rule = centered_clipping(radius=1.0, iterations=1)
    >>> rule.merge_around(np.float32(0), [np.float32(0.5), np.float32(100)], np.array([0.5, 0.5]))
    np.float32(0.75)
    """
    return _CenteredClipping(
        "centered_clipping", needs_every_reply=True, compares_replies=True, radius=radius, iterations=iterations
    )


@dataclass(frozen=True)
class _CenteredClipping(MergeRule):
    radius: float = 0.0
    iterations: int = 3

    def merge_around(self, centre: Tree, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        rows, share = finite_rows(as_rows(replies), weights)
        found = as_rows([centre])[0]
        for _ in range(self.iterations):
            away = rows - found
            lengths = np.linalg.norm(away, axis=1)
            radius = self.radius or float(weighted_median(lengths, share))
            cut = np.divide(radius, lengths, out=np.ones_like(lengths), where=lengths > radius)
            found = found + (share * cut) @ away
        return from_row(found, replies[0])
