"""Selection by loss: devices whose samples together have a high loss are chosen more often.

    v_k = sqrt(n_k) F_k    at the model after the round in which k was last chosen
    the `dropped` share of the known devices with the smallest v_k is left out
    (1 - explore) K devices with probabilities proportional to exp(sharpness * v_k), the others uniformly

(Goetz et al., "Active Federated Learning", 2019).
Devices that were never chosen have no v_k and are reached by the uniform part. If explore K is not an integer, it is
rounded up or down at random, so that a small K explores too. Replies are averaged with weights n_k.

The devices report: the loss of those that took part. Refused with privacy, since losses are not covered by noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedprox.config.fields import BelowOne, NotNegative, Share
from fedprox.participation.sampling import Cohort, SamplingView
from fedprox.participation.selection.candidates import choose_weighted, cohort_of, draw_uniform, known_here

__all__ = ["ByLoss"]


@dataclass(frozen=True)
class ByLoss:
    """Devices with a high loss more often, and some at random."""

    dropped: BelowOne = 0.75
    sharpness: NotNegative = 0.01
    explore: Share = 0.1

    with_replacement: ClassVar[bool] = False

    def __call__(self, view: SamplingView) -> Cohort:
        """Draw the devices of a round."""
        random, known = view.random(), known_here(view)
        value = np.array([view.known[device].loss for device in known.tolist()], float)
        value = np.nan_to_num(value, nan=1e30, posinf=1e30) * np.sqrt(view.offsets[known + 1] - view.offsets[known])
        kept = np.sort(np.argsort(-value, kind="stable")[: math.ceil((1 - self.dropped) * len(known))])
        exponent = np.minimum(self.sharpness * value[kept], 1e6)
        weight = np.exp(exponent - exponent.max(initial=-np.inf))
        exploring = math.floor(self.explore * view.per_round + random.random())
        chosen = choose_weighted(known[kept], weight, view.per_round - exploring, random)
        return cohort_of(view, [*chosen, *draw_uniform(view, view.per_round - len(chosen), random, chosen)])
