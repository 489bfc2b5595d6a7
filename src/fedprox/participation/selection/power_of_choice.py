"""Power of choice: of d devices drawn by size, the K with the highest loss.

    A_t: d different devices, drawn with probability p_k
    S_t: the K of A_t with the largest F_k(w^t),    w^(t+1) = mean of w_k over S_t

(Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning", 2022).
d = K is sampling by size; a larger d leans more towards devices with a high loss. Every candidate receives w^t and
reports one number, F_k(w^t), before the round. With `recent` (pi_rpow-d) no device is asked: the last known loss of a
device is used, and one that was never chosen comes first.

The devices report: their loss, all d candidates in every round; with `recent` those that took part. Bytes and seconds
of the candidates' reports are not counted. Refused with privacy, since losses are not covered by noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedprox.config.fields import CountOrZero, Flag
from fedprox.participation.sampling import Cohort, SamplingView
from fedprox.participation.selection.candidates import cohort_of, draw_by_size

__all__ = ["PowerOfChoice"]


@dataclass(frozen=True)
class PowerOfChoice:
    """The K devices with the highest loss of `candidates`, drawn by size (0: twice K)."""

    candidates: CountOrZero = 0
    recent: Flag = False

    weighs_draws: ClassVar[bool] = True
    with_replacement: ClassVar[bool] = False

    def __call__(self, view: SamplingView) -> Cohort:
        """Draw the devices of a round."""
        count = max(self.candidates or 2 * view.per_round, view.per_round)
        drawn = draw_by_size(view, min(count, len(view.offsets) - 1), view.random())
        losses = None if self.recent or view.losses is None else view.losses(drawn)
        if losses is None:
            losses = {device: each.loss for device, each in view.known.items() if each.loss is not None}
        high = np.array([losses.get(device, np.inf) for device in drawn.tolist()])
        high = np.where(np.isnan(high), np.inf, high)
        return cohort_of(view, drawn[np.argsort(-high, kind="stable")[: view.per_round]].tolist())
