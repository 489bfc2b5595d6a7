"""Krum and Multi-Krum (Blanchard et al., "Machine Learning with Adversaries", 2017), with weights.

A reply is judged by how far it is from those that are nearest to it. With n replies of weight 1/n and f attackers, the
score of a reply is the sum of its squared distances to its n - f - 2 nearest others. With weights the nearest replies
are those that, with the reply itself, hold 1 - (f + 1) / n of the weight; the last of them counts in part:

    score_i = n sum_j part_ij ||w_i - w_j||^2,        sum_j part_ij = 1 - (f + 1) / n,        0 <= part_ij <= weight_j

filled in the order of distance from w_i itself on. Krum takes the reply with the least score, Multi-Krum the weighted
mean of the n - f best ones. Proven for 2 f + 2 < n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.config.fields import CountOrZero
from fedprox.core.trees import Tree
from fedprox.methods.merging.distances import as_rows, squared_distances
from fedprox.methods.merging.rule import MergeRule

__all__ = ["krum", "krum_scores", "multi_krum"]


def krum(byzantine: CountOrZero = 1) -> MergeRule:
    """Return Krum for at most `byzantine` attackers.

    >>> krum().merge([np.float32(x) for x in (1, 1.5, 2, 3, 1e6)], np.full(5, 0.2))
    np.float32(1.5)
    """
    return _Krum("krum", needs_every_reply=True, compares_replies=True, byzantine=byzantine)


def multi_krum(byzantine: CountOrZero = 1) -> MergeRule:
    """Return Multi-Krum for at most `byzantine` attackers.

    >>> multi_krum().merge([np.float32(x) for x in (1, 1.5, 2, 3, 1e6)], np.full(5, 0.2))
    np.float32(1.875)
    """
    return _MultiKrum("multi_krum", needs_every_reply=True, compares_replies=True, byzantine=byzantine)


@dataclass(frozen=True)
class _Krum(MergeRule):
    byzantine: int = 1

    @property
    def least_replies(self) -> int:
        return self.byzantine + 3

    def survives(self, replies: int) -> int:
        return min(self.byzantine, max((replies - 3) // 2, 0))

    def merge(self, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        return replies[int(np.argmin(krum_scores(as_rows(replies), weights, self.byzantine)))]


class _MultiKrum(_Krum):
    def merge(self, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        scores = krum_scores(as_rows(replies), weights, self.byzantine)
        best = np.sort(np.argsort(scores, kind="stable")[: max(len(replies) - self.byzantine, 1)])
        chosen = weights[best] / weights[best].sum()
        return MergeRule.merge(self, [replies[index] for index in best], chosen)


def krum_scores(rows: NDArray[np.float64], weights: NDArray[np.float64], byzantine: int) -> NDArray[np.float64]:
    """Return the score of each row; with fewer than f + 3 rows the nearest other one counts.

    >>> krum_scores(np.array([[0.0], [1.0], [3.0], [9.0]]), np.full(4, 0.25), byzantine=1).tolist()
    [1.0, 1.0, 4.0, 36.0]
    """
    count = len(rows)
    distances = squared_distances(rows)
    mass = max(1 - (byzantine + 1) / count, min(2 / count, 1.0))
    order = np.argsort(distances, axis=1, kind="stable")
    share = (weights / weights.sum())[order]
    before = np.cumsum(share, axis=1) - share
    part = np.clip(mass - before, 0, share)
    part[part < 1e-12] = 0  # rounding of the sums; infinity times it would count
    nearest = np.take_along_axis(distances, order, axis=1)
    with np.errstate(invalid="ignore"):
        return count * np.where(part > 0, part * nearest, 0.0).sum(axis=1)
