"""Importance sampling: devices with a high loss are drawn more often and weighted less, so that the mean is unbiased.

    q_k = explore * p_k + (1 - explore) * n_k F_k / sum_j n_j F_j    j over the known devices; without any, q_k = p_k
    K independent draws with q_k,    w^(t+1) = w^t + 1/K sum over draws of p_k / q_k (w_k - w^t)

The expectation of the update is sum_k p_k (w_k - w^t), that of all devices, whatever q is; its variance is smallest for
q_k in proportion to p_k ||w_k - w^t|| (Chen, Horvath and Richtarik, "Optimal Client Sampling for Federated Learning",
2022). The loss replaces that norm, which is known only after training. As p_k / q_k is at most 1 / explore, no device
can count for more than that. The weights of a round sum to `scale`, which is 1 on
average: `weight` is recorded as shares of it, beside `probability` and `scale`.

The devices report: the loss of those that took part. On a clock unavailable devices are skipped and their draws are
repeated, so that the update is unbiased only for the available ones. It needs a method whose devices send their model
and nothing else, and the plain mean; refused with privacy, since losses are not covered by noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedprox.participation.clock.availability import most_candidates
from fedprox.participation.sampling import Cohort, SamplingView, listed, owners
from fedprox.participation.selection.candidates import present

__all__ = ["Importance"]


@dataclass(frozen=True)
class Importance:
    """K draws with probabilities that follow the loss, weighted so that their mean is unbiased."""

    explore: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, description="a number in (0, 1]")] = 0.5

    weighs_draws: ClassVar[bool] = True
    with_replacement: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __call__(self, view: SamplingView) -> Cohort:
        """Draw the devices of a round."""
        random = view.random()
        known = np.array(sorted(device for device, each in view.known.items() if each.loss is not None), np.int64)
        loss = np.array([view.known[device].loss for device in known.tolist()], float)
        mass = np.where(np.isfinite(loss) & (loss > 0), loss, 0) * (view.offsets[known + 1] - view.offsets[known])
        explore = self.explore if mass.sum() > 0 else 1.0
        share = mass / max(float(mass.sum()), 1e-300)
        drawn: list[int] = []
        looked = 0
        while len(drawn) < view.per_round and looked < most_candidates(view.per_round):
            count = view.per_round
            by_size = owners(random.bit_generator.random_raw(count), view.offsets)
            followed = random.random(count) >= explore
            picked = np.searchsorted(np.cumsum(share), random.random(count) * share.sum(), side="right")
            block = np.where(followed, known[np.minimum(picked, len(known) - 1)], by_size) if len(known) else by_size
            drawn += present(view, block).tolist()
            looked += count
        cohort = listed(np.array(drawn[: view.per_round], np.int64), view.offsets)
        own = dict(zip(known.tolist(), share.tolist(), strict=True))
        p = cohort.samples / float(view.offsets[-1])
        followed_share = np.array([own.get(device, 0.0) for device in cohort.devices.tolist()])
        return cohort.with_probability(explore * p + (1 - explore) * followed_share, p)
