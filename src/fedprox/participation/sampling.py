"""Which devices take part in a round: the two sampling schemes of the paper.

*Uniform* (Section 5.1, "Implementation"): K devices uniformly without replacement; the results are averaged with
weights proportional to n_k.

*Proportional* (Algorithms 1 and 2): K independent draws with probability p_k = n_k / n, so with replacement; the
results are averaged with weight 1/K per draw. A device drawn m times is listed once, with m draws.

The cost of a round does not depend on the number of devices: Floyd's algorithm draws K of N with K words, and a draw
with probability n_k / n is the owner of a uniformly drawn sample, found by bisection in the offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedprox.config.parts import find_part
from fedprox.core.errors import ConfigError
from fedprox.core.randomness import Purpose, generator, words
from fedprox.participation.known_devices import KnownDevice

__all__ = [
    "Available",
    "Cohort",
    "Losses",
    "Proportional",
    "SamplingView",
    "Uniform",
    "cap_weights",
    "check_sampling",
    "draw_cohort",
    "draw_without_replacement",
    "listed",
    "merge_scale",
    "merge_weights",
    "owners",
]


Losses = Callable[[NDArray[np.int64]], Mapping[int, float]]
"""Returns F_k at the current model, for some devices."""


@dataclass(frozen=True)
class Cohort:
    """The devices of a round, each listed once."""

    devices: NDArray[np.int64]  # (listed,)
    samples: NDArray[np.int64]  # (listed,) n_k
    draws: NDArray[np.int64]  # (listed,) how often each was drawn
    probability: NDArray[np.float64] | None = None  # (listed,) q_k of one draw, where the merge is to undo it
    target: NDArray[np.float64] | None = None  # (listed,) p_k, which a draw with q_k stands for

    def __len__(self) -> int:
        return len(self.devices)

    def only(self, some: NDArray[np.bool_]) -> Cohort:
        """Return some of the devices."""
        of_draws = [None if each is None else each[some] for each in (self.probability, self.target)]
        return Cohort(self.devices[some], self.samples[some], self.draws[some], *of_draws)

    def with_probability(self, probability: NDArray[np.float64], target: NDArray[np.float64]) -> Cohort:
        """Return the cohort with q_k and p_k of its devices, so that its merge is unbiased."""
        return replace(self, probability=probability, target=target)


@dataclass(frozen=True)
class SamplingView:
    """What a sampler sees.

    Attributes:
      round: the round that devices are chosen for, from 1 on.
      per_round: K.
      offsets: (devices + 1,) device k has the training samples offsets[k] to offsets[k + 1].
      seed: of the run.
      known: what the server knows about the devices that were chosen before, by device; not kept for the paper's
        schemes.
      purpose: which draw this is, for `words` and `random`.
      here: on a simulated clock, which of some devices are available: `here(devices) -> bools`.
      losses: F_k at the current model, for some devices: `losses(devices) -> {device: loss}`; None if not available.
      seconds: on a simulated clock, how long a round takes some devices: `seconds(devices) -> seconds`.
    """

    round: int
    per_round: int
    offsets: NDArray[np.int64]
    seed: int
    known: Mapping[int, KnownDevice] = field(default_factory=dict)
    purpose: Purpose = Purpose.DEVICES
    here: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None = None
    losses: Losses | None = None
    seconds: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None

    @property
    def available(self) -> NDArray[np.int64]:
        """The devices that can be asked: all of them, except those unavailable on a simulated clock."""
        devices = np.arange(len(self.offsets) - 1)
        return devices if self.here is None else devices[self.here(devices)]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """n_k of all devices."""
        return np.diff(self.offsets)

    def random(self) -> np.random.Generator:
        """Return a generator for this round's draws, which depends on seed and round alone."""
        return generator(self.seed, self.purpose, self.round)

    def words(self) -> NDArray[np.uint64]:
        """Return K random 64-bit words for this round's draws."""
        return words(self.per_round, self.seed, self.purpose, self.round)


class Uniform:
    """K devices uniformly without replacement."""

    weighs_draws: ClassVar[bool] = False
    with_replacement: ClassVar[bool] = False

    def __call__(self, view: SamplingView) -> Cohort:
        """Draw the devices of a round."""
        devices = draw_without_replacement(len(view.offsets) - 1, view.words())
        return Cohort(devices, view.offsets[devices + 1] - view.offsets[devices], np.ones_like(devices))


class Available(Uniform):
    """K devices uniformly without replacement, on a simulated clock among the available ones: as `uniform`."""


class Proportional:
    """K independent draws with probability p_k."""

    weighs_draws: ClassVar[bool] = True
    with_replacement: ClassVar[bool] = True

    def __call__(self, view: SamplingView) -> Cohort:
        """Draw the devices of a round."""
        return listed(owners(view.words(), view.offsets), view.offsets)


def check_sampling(scheme: str, per_round: int, devices: int) -> None:
    """Refuse a K that the population cannot serve."""
    sampler = find_part("samplers", scheme, "devices.sampling")
    if not getattr(sampler, "with_replacement", True) and not 1 <= per_round <= devices:
        numbers = f"an integer from 1 to {devices}, the number of devices," if devices > 1 else "1 for a single device"
        hint = "" if devices > 1 else ": name the device of each sample, or divide the samples with data.partition"
        raise ConfigError(f"`devices.per_round` must be {numbers} with {scheme} sampling; got {per_round}{hint}")


def draw_cohort(
    scheme: str,
    per_round: int,
    offsets: NDArray[np.int64],
    *,
    seed: int,
    round: int,
    purpose: Purpose = Purpose.DEVICES,
) -> Cohort:
    """Draw the devices of a round from a population with these offsets of its training samples.

    `scheme` is one of the paper's; `choose_cohort` also takes custom samplers.
    """
    sampler: Uniform | Proportional = find_part("samplers", scheme, "devices.sampling")()
    return sampler(SamplingView(round, per_round, offsets, seed, purpose=purpose))


def owners(random: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a device for each random word, drawn with probability p_k: the owner of a uniformly drawn sample."""
    sample = random % np.uint64(offsets[-1])
    return np.searchsorted(offsets, sample.astype(np.int64), side="right") - 1


def listed(drawn: NDArray[np.int64], offsets: NDArray[np.int64]) -> Cohort:
    """List each drawn device once, in the order in which they were first drawn."""
    counts = Counter(drawn.tolist())
    devices, draws = (np.fromiter(numbers, np.int64, len(counts)) for numbers in (counts, counts.values()))
    return Cohort(devices, offsets[devices + 1] - offsets[devices], draws)


def draw_without_replacement(total: int, random: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return len(random) different numbers below `total`, every subset equally likely (Floyd's algorithm).

    Draw t is a candidate c_t up to l_t = total - count + t, and l_t itself where c_t has been chosen before.
    """
    count = len(random)
    if count < _MANY or total.bit_length() + count.bit_length() > 63:
        chosen: dict[int, None] = {}
        for own, word in zip(range(total - count, total), random.tolist(), strict=True):
            drawn = word % (own + 1)
            chosen[own if drawn in chosen else drawn] = None
        return np.fromiter(chosen, np.int64, count)
    first, bits = total - count, count.bit_length()
    candidate = (random % np.arange(first + 1, total + 1, dtype=np.uint64)).view(np.int64)
    # c_t has been chosen if an earlier candidate is the same, or if it is an l_s that took the place of c_s, s < t
    draws = np.arange(count)
    packed = np.sort(candidate << bits | draws)
    numbers = packed >> bits
    flags = bytearray(count)
    taken = np.frombuffer(flags, bool)
    taken[packed[1:][numbers[1:] == numbers[:-1]] & ((1 << bits) - 1)] = True
    last = draws + first
    later = ((candidate >= first) & (candidate < last) & ~taken).nonzero()[0]
    for earlier, own in zip((candidate[later] - first).tolist(), later.tolist(), strict=True):
        flags[own] = flags[earlier]
    return np.where(taken, last, candidate)


_MANY = 200  # draws from which on array operations are faster


def merge_weights(
    cohort: Cohort, kept: NDArray[np.bool_], *, by_draws: bool, factors: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return each listed device's weight in the average over those kept: sums to 1, or all zero if none is kept.

    Uniform: n_k / sum n over the kept. Proportional: draws / (number of draws kept), which is m/K when all are kept.
    With `factors`, which are > 0, each is multiplied by its own before they are made to sum to 1.
    """
    share = np.where(kept, cohort.draws if by_draws else cohort.samples, 0).astype(np.float64)
    if cohort.probability is not None and cohort.target is not None:
        share = share * cohort.target / cohort.probability
        return share / (share.sum() or 1.0)
    if factors is None:
        return share / max(share.sum(), 1.0)
    share = share * factors
    return share / share.sum() if kept.any() else share


def merge_scale(cohort: Cohort, kept: NDArray[np.bool_]) -> float:
    """Return the factor of the mean update: the mean of p_k / q_k over the draws that are kept, otherwise 1.

    >>> drawn = Cohort(np.array([4, 7]), np.array([1, 3]), np.array([1, 1]))
    >>> merge_scale(drawn.with_probability(np.array([0.5, 0.5]), np.array([0.25, 0.5])), np.array([True, True]))
    0.75
    """
    if cohort.probability is None or cohort.target is None or not kept.any():
        return 1.0
    draws = np.where(kept, cohort.draws, 0)
    return float((draws * cohort.target / cohort.probability).sum() / draws.sum())


def cap_weights(weights: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Return weights none of which is above `most`, with the same sum; the excess goes to the others, in proportion.

    Where there are too few devices for that, all have the same weight.

    >>> cap_weights(np.array([0.7, 0.2, 0.1, 0.0]), 0.5)
    array([0.5       , 0.33333333, 0.16666667, 0.        ])
    >>> cap_weights(np.array([0.7, 0.3]), 0.4)
    array([0.5, 0.5])
    """
    total, taking = float(weights.sum()), weights > 0
    most = max(most, total / max(int(taking.sum()), 1))
    capped = np.zeros(len(weights), bool)
    result = weights
    while (above := result > most * (1 + 1e-12)).any():
        capped |= above
        left, others = total - most * capped.sum(), weights * (taking & ~capped)
        share = others / others.sum() if others.sum() > 0 else others
        result = np.where(capped, most, left * share)
    return result
