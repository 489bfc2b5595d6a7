"""The learning rate over the rounds (`solver.schedule`).

A schedule is a function of `solver.learning_rate` eta, the round t = 1, 2, … and the number of rounds T; its further
parameters are keys of `[solver]`.

    constant      eta
    exponential   eta decay^(t - 1)
    cosine        eta (share + (1 - share) (1 + cos(pi (t - 1) / T)) / 2)        from eta down to share eta
    step          eta step_factor^floor((t - 1) / step_rounds)

>>> rate = build_schedule(SolverConfig(learning_rate=0.1, schedule="step", step_rounds=2), rounds=4)
>>> [rate(round) for round in (1, 2, 3, 4)]
[0.1, 0.1, 0.05, 0.05]
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedprox.config import SolverConfig
from fedprox.config.fields import Count, Positive, Share
from fedprox.config.parts import build_part
from fedprox.core.errors import RunError, short
from fedprox.core.own_code import own_code

__all__ = ["Schedule", "build_changing", "build_schedule", "constant", "cosine", "exponential", "step"]


def constant(learning_rate: float, round: int, rounds: int) -> float:
    """Return the same rate in every round."""
    return learning_rate


def exponential(learning_rate: float, round: int, rounds: int, decay: Positive = 0.99) -> float:
    """Return a rate that is multiplied by `decay` after every round."""
    return learning_rate * decay ** (round - 1)


def cosine(learning_rate: float, round: int, rounds: int, final_share: Share = 0.01) -> float:
    """Return a rate that falls along a half cosine, to `final_share` of its initial value."""
    left = (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
    return learning_rate * (final_share + (1 - final_share) * left)


def step(learning_rate: float, round: int, rounds: int, step_rounds: Count = 50, step_factor: Positive = 0.5) -> float:
    """Return a rate that is multiplied by `step_factor` after every `step_rounds` rounds."""
    return learning_rate * step_factor ** ((round - 1) // step_rounds)


Schedule = Callable[[float, int, int], float]
"""A function of the learning rate, the round and the number of rounds."""


def build_changing(config: SolverConfig, rounds: int, given: Schedule | None = None) -> Callable[[int], float] | None:
    """Return the learning rate as a function of the round; None where it is the same in every round."""
    return None if given is None and config.schedule == "constant" else build_schedule(config, rounds, given)


def build_schedule(config: SolverConfig, rounds: int, given: Schedule | None = None) -> Callable[[int], float]:
    """Return the learning rate as a function of the round, as the config names it or as a given object has it."""
    schedule = given or build_part("schedules", "solver.schedule", config)
    name = config.schedule if given is None else getattr(given, "__qualname__", type(given).__qualname__)

    def rate(round: int) -> float:
        with own_code(f"the schedule {name!r}"):
            value = schedule(config.learning_rate, round, rounds)
        number = np.asarray(value)
        if number.dtype.kind not in "iuf" or number.shape != () or not 0 < number < math.inf:
            raise RunError(
                f"`solver.schedule` must give a number > 0 in every round; {name!r} gives {short(value)} in round "
                f"{round}"
            )
        return float(number)

    return rate
