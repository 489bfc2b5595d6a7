"""Which devices a run reached: how often each was asked, took part and was cut off, against its share p_k.

Unavailable devices are not asked, and slow ones do not finish, so the model leans towards the others. Two measures of
that lean, each a total-variation distance, 1/2 sum_k |share of k - target of k|: between how often devices were asked
and what the sampling scheme aims at (1/N, or p_k), and the same for those whose work was merged. Chance alone gives a
distance too. With X the number of times that an unbiased scheme draws a device, a binomial number with mean n q,

    E|X - n q| = 2 m C(n, m) q^m (1 - q)^(n - m + 1),    m = floor(n q) + 1    (de Moivre)

so that what remains above the sum of these is bias. Devices that were never asked are counted, not listed, so that the
cost does not grow with N. With draws by p_k, the p_k of these are taken as equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.config.selection import is_plain
from fedprox.runs.reader import SavedRun

__all__ = ["DeviceAccuracy", "Lean", "Reach", "chance", "count_reached", "leaves_some_out"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Lean:
    """How far from the sampling scheme's target, and how far chance alone would be."""

    distance: float
    by_chance: float


@dataclass(frozen=True)
class DeviceAccuracy:
    """The test accuracy of the final model over the devices that have test data, each counted once."""

    mean: float
    worst_tenth: float  # mean over the tenth of the devices for which it is lowest
    never_merged: float | None  # mean over those whose work never went into the model; None where there are none


@dataclass(frozen=True)
class Reach:
    """The participation of the devices of a run; arrays over those that were asked."""

    devices: int  # N
    device: NDArray[np.int64]
    kind: list[str]  # the class of each
    speed: Numbers  # median of its samples per second
    mass: Numbers  # p_k
    asked: Numbers  # how often it was drawn
    finished: Numbers  # of these, all of its work was done in time
    merged: Numbers  # its work, whole or in part, went into the model
    weight: Numbers  # its share in all merges
    asked_lean: Lean | None  # None where the aim of the sampler is not known
    merged_lean: Lean | None
    accuracy: DeviceAccuracy | None = None  # None where devices were not evaluated

    @property
    def cut_off(self) -> Numbers:
        """How often it was asked and did not finish."""
        return self.asked - self.finished

    def speed_correlation(self) -> float | None:
        """Return the correlation of a device's log speed with the share of its work that it finished."""
        speed, finished = np.log(self.speed), self.finished / self.asked
        if len(speed) < 3 or np.ptp(speed) == 0 or np.ptp(finished) == 0:
            return None
        return float(np.corrcoef(speed, finished)[0, 1])

    def never(self, counts: Numbers) -> tuple[int, float]:
        """Return how many devices have a count of zero, with those never asked, and their share of the samples."""
        some = counts > 0
        return self.devices - int(some.sum()), max(1 - float(self.mass[some].sum()), 0.0)

    def classes(self) -> list[dict[str, Any]]:
        """Return one row per class, the fastest first: the participation of its devices, their weight and their p_k."""
        kinds = np.array(self.kind)
        rows = []
        for kind in sorted(set(self.kind), key=lambda name: (-self._median(kinds == name), name)):
            those = kinds == kind
            asked = self.asked[those].sum()
            rows.append(
                {
                    "class": kind,
                    "speed": self._median(those),
                    "devices": int(those.sum()),
                    "asked": int(asked),
                    "finished": float(self.finished[those].sum() / asked),
                    "merged": float(self.merged[those].sum() / asked),
                    "weight": float(self.weight[those].sum()),
                    "mass": float(self.mass[those].sum()),
                }
            )
        return rows

    def _median(self, those: NDArray[np.bool_]) -> float:
        return float(np.median(self.speed[those]))


def leaves_some_out(run: SavedRun) -> bool:
    """Return whether a run was on the clock or chose devices by what is known about them, and has ended.

    The size of its population is then on record.
    """
    has_clock = run.config.systems.model == "clock" and "systems" not in run.replaced
    chooses = not is_plain(run.config.devices.sampling) or "sampler" in run.replaced
    return (has_clock or chooses) and run.summary is not None and len(run.devices) > 0


def count_reached(run: SavedRun) -> Reach:
    """Count the participation of the devices of a run that has ended."""
    summary = run.summary or {}
    seen: dict[int, _Seen] = {}
    for row in run.devices:
        _count(row, seen)
    rows = [seen[device] for device in sorted(seen)]
    mass = np.array([one.samples for one in rows]) / summary["train_samples"]
    asked = np.array([one.asked for one in rows], float)
    merged = np.array([one.merged for one in rows], float)
    weight = np.array([one.weight for one in rows])
    leans = [_lean(counts, mass, summary["devices"], run) for counts in (asked, merged)]
    return Reach(
        devices=summary["devices"],
        device=np.array(sorted(seen)),
        kind=[one.kind for one in rows],
        speed=np.array([np.median(one.speeds) for one in rows]),
        mass=mass,
        asked=asked,
        finished=np.array([one.finished for one in rows], float),
        merged=merged,
        weight=weight / max(weight.sum(), 1.0),
        asked_lean=leans[0],
        merged_lean=leans[1],
        accuracy=_accuracy(run, {device for device, one in seen.items() if one.merged}),
    )


def _accuracy(run: SavedRun, merged: set[int]) -> DeviceAccuracy | None:
    rows = [(row["test_accuracy"], row["device"]) for row in run.evaluation if row.get("test_accuracy") is not None]
    if not rows:
        return None
    rows.sort()
    values = np.array([value for value, _ in rows])
    never = [value for value, device in rows if device not in merged]
    worst = values[: max(1, len(values) // 10)]
    return DeviceAccuracy(float(values.mean()), float(worst.mean()), float(np.mean(never)) if never else None)


def chance(draws: int, probability: float) -> float:
    """Return E|X - n q| for X binomial with n draws of probability q.

    >>> chance(2, 0.5)  # X is 0, 1, 2 with 1/4, 1/2, 1/4
    0.5
    """
    if probability <= 0 or probability >= 1:
        return 0.0
    # the closed form of de Moivre: `scipy.stats.binom.expect` adds up all terms, for every device
    m = min(math.floor(draws * probability) + 1, draws)
    logarithm = math.lgamma(draws + 1) - math.lgamma(m + 1) - math.lgamma(draws - m + 1)
    logarithm += m * math.log(probability) + (draws - m + 1) * math.log1p(-probability)
    return round(2 * m * math.exp(logarithm), 12)


@dataclass
class _Seen:
    kind: str
    samples: int
    speeds: list[float] = field(default_factory=list)
    asked: int = 0
    finished: int = 0
    merged: int = 0
    weight: float = 0.0


def _count(row: Mapping[str, Any], seen: dict[int, _Seen]) -> None:
    failed = row.get("failed", [False] * len(row["device"]))
    for position, device in enumerate(row["device"]):
        kind = row["class"][position] if "class" in row else "device"
        one = seen.setdefault(device, _Seen(kind, row["samples"][position]))
        draws = row["draws"][position]
        one.speeds.append(row["samples_per_second"][position] if "samples_per_second" in row else 1.0)
        one.asked += draws
        one.finished += 0 if row["straggler"][position] or failed[position] else draws
        one.merged += draws if row["kept"][position] else 0
        one.weight += row["weight"][position]


def _lean(counts: Numbers, mass: Numbers, devices: int, run: SavedRun) -> Lean | None:
    """Return the distance of the devices' counts from the scheme's target; None for a custom sampler."""
    if "sampler" in run.replaced or not is_plain(run.config.devices.sampling):
        return None
    total, others = counts.sum(), devices - len(counts)
    if total == 0:
        return Lean(math.nan, math.nan)
    is_uniform = run.config.devices.sampling != "proportional"
    target = np.full(len(counts), 1 / devices) if is_uniform else mass
    of_others = max(1 - target.sum(), 0.0)
    distance = float(np.abs(counts / total - target).sum() + of_others) / 2
    # without replacement a device is drawn at most once a round
    draws, factor = (len(run.devices), total / len(run.devices)) if is_uniform else (int(total), 1.0)
    by_chance = sum(chance(draws, min(float(q) * factor, 1.0)) for q in target)
    by_chance += others * chance(draws, min(of_others / others * factor, 1.0)) if others else 0.0
    return Lean(distance, float(by_chance / total / 2))
