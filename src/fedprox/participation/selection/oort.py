"""Selection by utility, as in Oort: a high loss on many samples, a quick reply, and some devices never seen.

    U_k = n_k F_k, at most the 95% quantile of the known ones
    u_k = (U_k - m) / (max U - m) + sqrt(0.1 log t / t_k)        m = 0.999 min U, before the 95% limit
                                                                 t_k: the round in which k was last chosen
    u_k is multiplied by (T / s_k)^penalty where k took s_k > T seconds, T the `preferred` quantile of the known s_k
    floor((1 - e) K) devices from those with u_k >= 0.95 of the smallest that is among as many, in proportion to u_k
    the others uniformly from those never chosen;   e = max(0.9 * 0.98^t, `explore`), 0 once all have been chosen

(Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021).
It differs from Oort in three things: the loss is the mean over a device's samples at the new model, not the root of the
mean square during training; T is a quantile, not moved by a pacer; devices that were never chosen are drawn uniformly,
as nothing is known about their speed. Replies are averaged with weights n_k.

The devices report: the loss of those that took part; how long they took is measured. Without a clock nothing is slow.
Refused with privacy, since losses are not covered by noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedprox.config.fields import NotNegative, Share
from fedprox.participation.sampling import Cohort, SamplingView
from fedprox.participation.selection.candidates import choose_weighted, cohort_of, draw_uniform, known_here

__all__ = ["Oort", "utility"]

_CLIP, _CUT_OFF = 0.95, 0.95
_FIRST, _DECAY = 0.9, 0.98  # of the share that explores


@dataclass(frozen=True)
class Oort:
    """Devices with a high utility, and some that were never chosen."""

    explore: Share = 0.2
    penalty: NotNegative = 2.0
    preferred: Share = 0.8

    with_replacement: ClassVar[bool] = False

    def __call__(self, view: SamplingView) -> Cohort:
        """Draw the devices of a round."""
        random, known = view.random(), known_here(view)
        share = max(_FIRST * _DECAY**view.round, self.explore)
        if len(view.known) == len(view.offsets) - 1:
            share = 0.0
        count = min(math.floor((1 - share) * view.per_round + 1e-9), len(known))
        chosen: list[int] = []
        if count:
            useful = utility(view, known, self.penalty, self.preferred)
            least = _CUT_OFF * np.sort(useful)[-count]
            chosen = choose_weighted(known[useful >= least], useful[useful >= least], count, random)
        fresh = draw_uniform(view, view.per_round - len(chosen), random, {*view.known, *chosen})
        chosen += fresh
        missing = view.per_round - len(chosen)  # all have been seen
        if missing > 0:
            chosen += draw_uniform(view, missing, random, chosen)
        return cohort_of(view, chosen)


def utility(view: SamplingView, known: NDArray[np.int64], penalty: float, preferred: float) -> NDArray[np.float64]:
    """Return u_k of devices whose loss is known."""
    each = [view.known[device] for device in known.tolist()]
    loss = np.nan_to_num(np.array([one.loss for one in each], float), nan=1e30, posinf=1e30)
    value = np.maximum(loss, 0) * (view.offsets[known + 1] - view.offsets[known])
    lowest = 0.999 * value.min()
    width = max(float(value.max() - lowest), 1e-4)
    value = (np.minimum(value, np.quantile(value, _CLIP)) - lowest) / width
    last = np.array([one.last_round for one in each], float)
    value = value + np.sqrt(0.1 * math.log(max(view.round, 1)) / last)
    took = np.array([np.nan if one.seconds is None else one.seconds for one in each])
    if np.isfinite(took).any():
        limit = float(np.nanquantile(took, preferred))
        slow = np.isfinite(took) & (took > limit)
        value = np.where(slow, value * (limit / np.where(slow, took, 1.0)) ** penalty, value)
    return value
