"""Tiers of devices of about one speed: a round takes devices of one tier, so that it does not wait for slower ones.

Devices are divided into `tiers` by how long a round takes them, at the quantiles of a fixed sample of devices, each
with the work and network of a round before the first. A round draws a tier, with equal probabilities or, with
`adaptive`, with probabilities T / D, (T - 1) / D, ..., 1 / D from the tier with the highest loss to the one with the
lowest, where D = T (T + 1) / 2 for T tiers; then K of its devices uniformly among the available ones. The loss of a
tier is the mean over its devices at the time they were last chosen; a tier without a known loss counts as the worst.

(Chai et al., "TiFL: A Tier-based Federated Learning System", HPDC 2020.) TiFL ranks tiers by their accuracy on test
data, changes the probabilities every few rounds, where the accuracy of the current tier has not risen, and gives each
tier a number of credits, which bound how often it is drawn; here they are ranked in every round by the loss that
devices report, and there are no credits. Replies are averaged with weights n_k.

The devices report: how long a round takes them, and with `adaptive` the loss of those that took part. It needs the
clock, and is refused with privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedprox.config.fields import Count, Flag
from fedprox.core.errors import ConfigError
from fedprox.core.randomness import Purpose, words
from fedprox.participation.sampling import Cohort, SamplingView, draw_without_replacement
from fedprox.participation.selection.candidates import choose_weighted, cohort_of, uniform_blocks

__all__ = ["Tiers", "tier_bounds"]

_PROFILED = 200  # devices whose seconds set the bounds of the tiers


@dataclass(frozen=True)
class Tiers:
    """Devices of one tier of speed."""

    tiers: Count = 5
    adaptive: Flag = True

    with_replacement: ClassVar[bool] = False
    needs_clock: ClassVar[bool] = True

    def __call__(self, view: SamplingView) -> Cohort:
        """Draw the devices of a round."""
        bounds, random = tier_bounds(view, self.tiers), view.random()
        order = choose_weighted(np.arange(self.tiers), self._weights(view, bounds), self.tiers, random)
        found: dict[int, list[int]] = {tier: [] for tier in order}
        for block in uniform_blocks(view, random):
            if len(block):
                for device, tier in zip(block.tolist(), _tier(view, block, bounds).tolist(), strict=True):
                    found[tier].append(device)
            if len(found[order[0]]) >= view.per_round:
                break
        for tier in order:  # the one that was drawn, or the next with an available device
            if found[tier]:
                return cohort_of(view, found[tier][: view.per_round])
        return cohort_of(view, [])

    def _weights(self, view: SamplingView, bounds: NDArray[np.float64]) -> NDArray[np.float64]:
        known = sorted(device for device, each in view.known.items() if each.loss is not None)
        if not self.adaptive or not known:
            return np.ones(self.tiers)
        loss = np.nan_to_num(np.array([view.known[device].loss for device in known], float), nan=1e30, posinf=1e30)
        tier = _tier(view, np.array(known, np.int64), bounds)
        counts = np.bincount(tier, minlength=self.tiers)
        means = np.bincount(tier, loss, self.tiers) / np.maximum(counts, 1)
        means[counts == 0] = np.inf
        below, equal = means < means[:, None], means == means[:, None]
        ranks: NDArray[np.float64] = below.sum(axis=1) + (equal.sum(axis=1) + 1) / 2  # equal ones share their ranks
        return ranks


def tier_bounds(view: SamplingView, tiers: int) -> NDArray[np.float64]:
    """Return the seconds that divide the tiers, (tiers - 1,), the fastest first."""
    devices = len(view.offsets) - 1
    drawn = draw_without_replacement(devices, words(min(_PROFILED, devices), view.seed, Purpose.DEVICES))
    return np.quantile(_seconds(view, drawn), np.arange(1, tiers) / tiers)


def _tier(view: SamplingView, devices: NDArray[np.int64], bounds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.searchsorted(bounds, _seconds(view, devices), side="right")


def _seconds(view: SamplingView, devices: NDArray[np.int64]) -> NDArray[np.float64]:
    if view.seconds is None:
        raise ConfigError("`systems.model` must be 'clock' with devices.sampling = 'tiers', which needs speeds")
    return view.seconds(devices)
