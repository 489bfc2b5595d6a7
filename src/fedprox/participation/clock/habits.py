"""Habits: when devices are available, with shared nights, days that repeat and states that last.

Time is cut into slots. In each slot a device either keeps its state, with probability `persistence`, or draws a new
one; it is then available with the probability

    pi_k(t) = 1 / (1 + exp(-(a_k + habit * cos(2 pi (hour(t) - h_k) / 24))))

whose level a_k ~ N(level, level_spread^2) sets how often it is available, and whose hour h_k ~ N(peak_hour,
peak_spread_hours^2) sets when. So most devices share their nights, each has a habit that repeats every day, and an
available device stays available for a while. Where labels are rare (`systems.rare_labels`), a device with the share q_k
of its samples in them has the level a_k - rare_by * level_spread * q_k.

Whether a device is available at a time depends on (seed, slot, device) alone: on the last slot in which it drew a new
state, which is found by going back a few slots. Nothing is stored between rounds, and a device costs nothing until it
is a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprox.config.fields import BelowOne, NotNegative, Positive, Section
from fedprox.core.philox import philox_blocks
from fedprox.core.randomness import Purpose

__all__ = ["HabitDraws", "Habits", "probability", "seconds_there"]

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

_AT_ONCE = 12  # slots that are drawn together
_FIRST_SLOT = 1 << 32  # added to a slot's number, so that the time before the start has one too
_LONGEST = 14 * 86400.0  # seconds; a device that stays longer counts as always available
_TO_UNIT = 2.0**-64


class Habits(Section):
    """`[availability]` of a profile: how often, when and for how long devices are available."""

    slot_seconds: Positive = 1800.0
    persistence: BelowOne = 0.0
    level: Annotated[float, Field(ge=-50, le=50, allow_inf_nan=False, description="a number from -50 to 50")]
    level_spread: NotNegative = 0.0
    habit: NotNegative = 0.0
    peak_hour: Annotated[float, Field(ge=0, lt=24, allow_inf_nan=False, description="a number in [0, 24)")] = 0.0
    peak_spread_hours: NotNegative = 0.0


@dataclass(frozen=True)
class HabitDraws:
    """The habits of some devices; arrays in their order."""

    level: Numbers  # a_k
    peak_hour: Numbers  # h_k, on the server's clock
    begins: Numbers  # seconds after the server's midnight at which its first slot begins, less than a slot


def probability(habits: Habits, draws: HabitDraws, hour: Numbers) -> Numbers:
    """Return pi_k at hours of the server's day, broadcast against the devices.

    >>> one = HabitDraws(np.array([0.0]), np.array([3.0]), np.array([0.0]))
    >>> probability(Habits(level=0.0, habit=2.0), one, np.array([3.0, 9.0, 15.0])).round(3)
    array([0.881, 0.5  , 0.119])
    """
    return 1 / (1 + np.exp(-(draws.level + habits.habit * np.cos(2 * np.pi * (hour - draws.peak_hour) / 24))))


def seconds_there(habits: Habits, draws: HabitDraws, devices: NDArray[np.int64], now: float, seed: int) -> Numbers:
    """Return how long each device stays available: 0 for an unavailable one, infinity for more than two weeks."""
    slot = np.floor((now - draws.begins) / habits.slot_seconds).astype(np.int64)
    there = _state(habits, draws, devices, slot, seed)
    left = np.zeros(len(devices))
    staying = np.flatnonzero(there)
    ahead = 1
    while len(staying) and ahead * habits.slot_seconds < _LONGEST:
        some = _some(draws, staying)
        decided, comes = _decisions(habits, some, devices[staying], slot[staying] + ahead, seed)
        leaves = decided & ~comes
        gone = leaves.any(axis=1)
        ends = slot[staying] + ahead + leaves.argmax(axis=1)
        left[staying[gone]] = (ends * habits.slot_seconds + some.begins - now)[gone]
        staying, ahead = staying[~gone], ahead + _AT_ONCE
    left[staying] = np.inf
    return left


def _state(habits: Habits, draws: HabitDraws, devices: NDArray[np.int64], slot: NDArray[np.int64], seed: int) -> Flags:
    """Return which devices are available in a slot: the state drawn in the last slot with a new draw."""
    there = np.zeros(len(devices), bool)
    open_ = np.arange(len(devices))
    behind = _AT_ONCE - 1
    while len(open_):
        decided, comes = _decisions(habits, _some(draws, open_), devices[open_], slot[open_] - behind, seed)
        known = decided.any(axis=1)
        last = _AT_ONCE - 1 - decided[:, ::-1].argmax(axis=1)
        there[open_[known]] = comes[np.arange(len(open_)), last][known]
        open_, behind = open_[~known], behind + _AT_ONCE
    return there


def _decisions(
    habits: Habits, draws: HabitDraws, devices: NDArray[np.int64], first: NDArray[np.int64], seed: int
) -> tuple[Flags, Flags]:
    """Return whether each device draws a new state in the slots from `first` on, and which."""
    slots = first[:, None] + np.arange(_AT_ONCE)  # (devices, slots)
    key, blocks = (seed, int(Purpose.CLOCK_HABIT)), np.ones(slots.size, np.int64)
    words = philox_blocks(key, blocks, (slots + _FIRST_SLOT).reshape(-1), np.repeat(devices, _AT_ONCE))
    uniform = (words[:, :2] * _TO_UNIT).reshape(*slots.shape, 2)
    hour = (slots * habits.slot_seconds + draws.begins[:, None]) / 3600 % 24
    wide = HabitDraws(draws.level[:, None], draws.peak_hour[:, None], draws.begins)
    return uniform[..., 0] >= habits.persistence, uniform[..., 1] < probability(habits, wide, hour)


def _some(draws: HabitDraws, which: NDArray[np.int64]) -> HabitDraws:
    return HabitDraws(draws.level[which], draws.peak_hour[which], draws.begins[which])
