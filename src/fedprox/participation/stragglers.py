"""Systems heterogeneity: how much work each chosen device does (Section 5.2).

The result is arrays, never control flow: a budget in mini-batch steps for every listed device, and which are
stragglers. Whether a straggler's partial work is kept is the method's decision.

*Stragglers*: floor(s m + 1/2) of the m listed devices are marked, and each marked device is given x epochs, uniform on
{1, ..., E}; all others are given E. With E = 1 a marked device is given a uniform number of its mini-batches instead,
at least one. m is K with uniform sampling and fewer where proportional sampling draws a device several times: s is a
share of the devices that take part. A straggler may happen to do all the work; methods that drop stragglers still drop
it. (`[compat]` has the released code's {1, ..., E - 1}.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, generator, words, words_of_devices
from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.sampling import Cohort, draw_without_replacement

__all__ = ["Stragglers", "WorkView", "Workload", "failures", "further_failures", "straggler_work"]


@dataclass(frozen=True)
class Workload:
    """What the listed devices of a round can do."""

    straggler: NDArray[np.bool_]  # (listed,)
    epochs: NDArray[np.float64]  # (listed,) given, fractional where the budget is
    budget: NDArray[np.int64]  # (listed,) the same in mini-batch steps


@dataclass(frozen=True)
class WorkView:
    """What a systems model sees of a round.

    Attributes:
      round: from 1 on.
      cohort: the listed devices, with their samples.
      epochs: E.
      batch_size: b (0: the whole local data set).
      stragglers: `devices.stragglers`, a share of the listed devices.
      most_epochs: the most that a straggler of the paper can draw.
      seed: of the run.
    """

    round: int
    cohort: Cohort
    epochs: int
    batch_size: int
    stragglers: float
    most_epochs: int
    seed: int

    @property
    def full_budget(self) -> NDArray[np.int64]:
        """E epochs in mini-batch steps, for each listed device."""
        return np.asarray(steps_per_epoch(self.cohort.samples, self.batch_size)) * self.epochs

    def random(self) -> np.random.Generator:
        """Return a generator for this round's draws, which depends on seed and round alone."""
        return generator(self.seed, Purpose.STRAGGLERS, self.round)


class Stragglers:
    """The paper's model: some devices are marked, and do fewer epochs."""

    def __call__(self, view: WorkView) -> Workload:
        """Return the work of a round."""
        return straggler_work(
            view.cohort,
            share=view.stragglers,
            epochs=view.epochs,
            most=view.most_epochs,
            batch_size=view.batch_size,
            seed=view.seed,
            round=view.round,
        )


def straggler_work(
    cohort: Cohort,
    *,
    share: float,
    epochs: int,
    batch_size: int,
    seed: int,
    round: int,
    most: int | None = None,
) -> Workload:
    """Mark stragglers among the listed devices and give every device its budget.

    A straggler draws from {1, ..., most} epochs, by default from {1, ..., E}.
    """
    most = epochs if most is None else most
    straggler = _marked(len(cohort), share, seed, Purpose.STRAGGLERS, round)
    per_epoch = np.asarray(steps_per_epoch(cohort.samples, batch_size))
    budget = per_epoch * epochs
    if straggler.any():
        marked = per_epoch[straggler]
        drawn, begins = words_of_devices(np.ones_like(marked), seed, Purpose.EPOCHS, round, cohort.devices[straggler])
        choices = marked if epochs == 1 else np.full_like(marked, most)
        amount = 1 + (drawn[begins] % choices.astype(np.uint64)).astype(np.int64)  # of batches, or of epochs
        budget[straggler] = amount if epochs == 1 else amount * marked
    return Workload(straggler, budget / per_epoch, budget)


def failures(cohort: Cohort, *, share: float, seed: int, round: int) -> NDArray[np.bool_]:
    """Mark floor(share m + 1/2) of the m listed devices as failed: they return nothing, whatever the method."""
    return _marked(len(cohort), share, seed, Purpose.FAILURES, round)


def further_failures(count: int, *, share: float, seed: int, round: int, block: int) -> NDArray[np.bool_]:
    """Mark as many of `count` devices that are asked after the round's list; `block` counts such devices from 1 on."""
    return _marked(count, share, seed, Purpose.FAILURES, round, block)


def _marked(listed: int, share: float, seed: int, purpose: Purpose, round: int, block: int = 0) -> NDArray[np.bool_]:
    marked = np.zeros(listed, bool)
    count = math.floor(share * listed + 0.5)
    if count == 0:
        return marked
    marked[draw_without_replacement(listed, words(count, seed, purpose, round, block))] = True
    return marked
