"""The plan of a round: which devices take part, with how much work, and which are kept.

It follows from the config, the population and the method's rule for stragglers alone, and on a clock from the simulated
time, so that every comparison has the same devices, stragglers and budgets, and the plan of a round can be computed
without running it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.core.randomness import Purpose
from fedprox.methods import Method
from fedprox.methods.custom_checks import kept_devices
from fedprox.participation.clock import Clock, Timed
from fedprox.participation.clock.availability import Here, ask_chosen
from fedprox.participation.clock.event_times import EventTimes
from fedprox.participation.clock.over_selection import number_asked
from fedprox.participation.cohort_choice import choose_cohort
from fedprox.participation.known_devices import KnownDevice
from fedprox.participation.own_choices import OwnChoices
from fedprox.participation.sampling import Cohort, Losses, cap_weights, merge_scale, merge_weights
from fedprox.participation.stragglers import Workload, failures
from fedprox.participation.work_choice import give_work
from fedprox.population import Population
from fedprox.privacy import equal_weights

__all__ = ["RoundPlan", "check_plan", "plan_round", "settle"]


@dataclass(frozen=True)
class RoundPlan:
    """What is fixed before the devices of a round start; arrays in the order of the round's list."""

    round: int
    cohort: Cohort
    work: Workload
    failed: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    weights: NDArray[np.float64]
    second: SecondDraw | None = None
    timed: Timed | EventTimes | None = None  # what the clock says, where there is one
    weighs_draws: bool = False  # whether replies are averaged by draws, and not by n_k
    max_weight: float = 1.0  # of one device
    mixing: float = 1.0  # how far the model moves towards the merged one

    def record(self) -> dict[str, Any]:
        """Return the plan as the fields of `devices.jsonl`."""
        return {
            "device": self.cohort.devices.tolist(),
            "samples": self.cohort.samples.tolist(),
            "draws": self.cohort.draws.tolist(),
            "straggler": self.work.straggler.tolist(),
            "epochs": self.work.epochs.tolist(),
            "budget": self.work.budget.tolist(),
            "kept": self.kept.tolist(),
            "weight": self.weights.tolist(),
            **({"failed": self.failed.tolist()} if self.failed.any() else {}),
            **self._probabilities(),
            **({"second_draw": self.second.record()} if self.second is not None else {}),
            **(self.timed.record() if self.timed is not None else {}),
        }

    def _probabilities(self) -> dict[str, Any]:
        if self.cohort.probability is None:
            return {}
        return {"probability": self.cohort.probability.tolist(), "scale": self.mixing}


@dataclass(frozen=True)
class SecondDraw:
    """Devices that are asked for their gradient at w^t alone."""

    cohort: Cohort
    weights: NDArray[np.float64]  # 0 for one that has failed in this round

    def record(self) -> dict[str, Any]:
        """Return the draw as the fields of `devices.jsonl`."""
        return {"device": self.cohort.devices.tolist(), "weight": self.weights.tolist()}


def check_plan(method: Method, clock: Clock | None, per_round: int, devices: int) -> None:
    """Refuse a method whose rounds the clock cannot plan, and warn about one that needs all devices."""
    if method.wants_all_devices and per_round < devices:
        warnings.warn(
            f"the theory of {method.name} needs every device in every round; `devices.per_round` is {per_round} of "
            f"{devices}",
            stacklevel=3,
        )
    if clock is not None and method.second_draw:
        raise ConfigError(
            "`method.second_draw` must be false with systems.model = 'clock', which simulates only the chosen devices"
        )


def plan_round(
    config: Config,
    population: Population,
    method: Method,
    round: int,
    *,
    clock: Clock | None = None,
    now: float = 0.0,
    known: Mapping[int, KnownDevice] | None = None,
    cohort_seed: int | None = None,
    choices: OwnChoices | None = None,
    max_weight: float = 1.0,
    losses: Losses | None = None,
) -> RoundPlan:
    """Return the plan of a round.

    With systems.model = "clock" it needs the clock and the simulated time, with a user's sampler what is `known`.
    `cohort_seed` takes the place of the seed where devices are drawn: private rounds on real devices have one that is
    not known. `choices` are a sampler and a systems model from Python. `max_weight` is the largest weight of one
    device, for real devices, which claim their sample counts. `losses` gives devices' losses at the current model.
    """
    choices = choices or OwnChoices()
    chosen, offsets = config.devices, population.train.offsets
    draw = {"seed": config.seed, "round": round}
    timed = None

    def choose(here: Here | None = None) -> Cohort:
        seed = config.seed if cohort_seed is None else cohort_seed
        count = min(number_asked(config.systems, chosen.per_round), max(population.devices, chosen.per_round))
        asks = chosen if count == chosen.per_round else chosen.model_copy(update={"per_round": count})
        return choose_cohort(
            asks,
            offsets,
            seed=seed,
            round=round,
            known=known,
            sampler=choices.sampler,
            here=here,
            losses=losses,
            seconds=None if clock is None else partial(clock.seconds_of, offsets),
        )

    if clock is None:
        cohort = choose()
        failed = failures(cohort, share=chosen.failure, **draw)
        work = give_work(config, cohort, round=round, systems=choices.systems)
    else:
        if choices.has_own_sampler(config):
            asked = ask_chosen(choose, clock.source.seconds_left, now=now, round=round)
        else:
            asked = clock.ask(offsets, now=now, round=round)
        cohort = asked.cohort
        failed = failures(cohort, share=chosen.failure, **draw)
        work, timed = clock.work(asked, failed, round)
    population.check(cohort.devices)
    kept = kept_devices(method, work) & ~failed & (work.budget > 0)
    by_draws = choices.weighs_draws(config)
    second = _second_draw(config, population, cohort.devices[failed], round, choices) if method.second_draw else None
    weights = _weights(config, cohort, kept, by_draws, max_weight)
    scale = merge_scale(cohort, kept)
    return RoundPlan(round, cohort, work, failed, kept, weights, second, timed, by_draws, max_weight, scale)


def settle(
    plan: RoundPlan, config: Config, method: Method, replied: NDArray[np.bool_], cut_off: NDArray[np.bool_]
) -> RoundPlan:
    """Return the plan as carried out: without the devices that did not reply, and with those cut off as stragglers."""
    if not cut_off.any() and np.array_equal(replied & plan.kept, plan.kept):
        return plan
    work = replace(plan.work, straggler=plan.work.straggler | cut_off)
    kept = kept_devices(method, work) & plan.kept & replied
    weights = _weights(config, plan.cohort, kept, plan.weighs_draws, plan.max_weight)
    return replace(plan, work=work, kept=kept, weights=weights, mixing=merge_scale(plan.cohort, kept))


def _weights(
    config: Config, cohort: Cohort, kept: NDArray[np.bool_], by_draws: bool, most: float
) -> NDArray[np.float64]:
    if config.privacy.clip > 0:
        return equal_weights(config.devices.per_round, kept)
    weights = merge_weights(cohort, kept, by_draws=by_draws)
    return cap_weights(weights, most) if most < 1 else weights


def _second_draw(
    config: Config, population: Population, failed: NDArray[np.int64], round: int, choices: OwnChoices
) -> SecondDraw:
    cohort = choose_cohort(
        config.devices,
        population.train.offsets,
        seed=config.seed,
        round=round,
        purpose=Purpose.SECOND_DEVICES,
        sampler=choices.sampler,
    )
    population.check(cohort.devices)
    replied = ~np.isin(cohort.devices, failed)
    return SecondDraw(cohort, merge_weights(cohort, replied, by_draws=choices.weighs_draws(config)))
