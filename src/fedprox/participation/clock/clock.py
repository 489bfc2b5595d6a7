"""The clock: each device does what it can by the deadline (Section 5.2: "a global clock").

A round starts when devices have been found. Each downloads the model, trains, and uploads; the steps that fit before
the deadline, and before the device becomes unavailable, are its budget. A device that cannot do all E epochs is a
straggler: FedAvg drops it, FedProx keeps what it has done. One that cannot do a single step takes no part, whatever the
method. The round lasts until the last reply, or until the deadline where a device was late or failed: the server cannot
know that nothing more will come. So methods with messages of the same size share one time line and the same draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.clock.availability import Asked, ask
from fedprox.participation.clock.deadline import deadline_seconds
from fedprox.participation.clock.over_selection import first_replies, number_asked
from fedprox.participation.clock.sources import Source, build_source
from fedprox.participation.clock.timing import Devices, seconds_for, steps_within
from fedprox.participation.stragglers import Workload
from fedprox.participation.traffic import Traffic
from fedprox.population import Population

__all__ = ["Clock", "Timed", "build_clock"]


@dataclass(frozen=True)
class Timed:
    """The clock's part in the plan of a round; arrays in the order of the round's list."""

    asked: Asked
    devices: Devices
    deadline: float  # seconds from the start of the round
    limit: NDArray[np.float64]  # the same for each device, or less for one that becomes unavailable first
    batch_size: int
    traffic: Traffic

    def seconds(self, steps: list[int], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return when each device's reply arrived, or for one that was not kept, when waiting for it ended."""
        samples = self.asked.cohort.samples
        took = seconds_for(np.array(steps, np.int64), samples, self.batch_size, self.devices, self.traffic)
        return np.where(kept, took, self.limit)

    def end(self, seconds: NDArray[np.float64], all_replied: bool) -> float:
        """Return the simulated time at which the round was over."""
        return self.asked.start + (float(seconds.max()) if all_replied else self.deadline)

    def record(self) -> dict[str, Any]:
        """Return the values for `devices.jsonl`: of the round, and of each device."""
        return {
            "start": self.asked.start,
            "deadline": self.deadline,
            "away": self.asked.away,
            "class": list(self.devices.kind),
            "samples_per_second": self.devices.samples_per_second.tolist(),
        }


@dataclass(frozen=True)
class Clock:
    """The clock of a run."""

    not_keys: ClassVar[frozenset[str]] = frozenset({"config", "source", "traffic"})

    config: Config
    source: Source
    traffic: Traffic

    def ask(self, offsets: NDArray[np.int64], *, now: float, round: int) -> Asked:
        """Find the devices of a round among those that are available."""
        chosen, systems = self.config.devices, self.config.systems
        return ask(
            chosen.sampling,
            chosen.per_round,
            offsets,
            self.source.seconds_left,
            now=now,
            seed=self.config.seed,
            round=round,
            wanted=number_asked(systems, chosen.per_round),
        )

    def seconds_of(self, offsets: NDArray[np.int64], devices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how long the full work of a round would take each device, in a round before the first."""
        samples, solver = offsets[devices + 1] - offsets[devices], self.config.solver
        steps = np.asarray(steps_per_epoch(samples, solver.batch_size)) * solver.epochs
        return seconds_for(steps, samples, solver.batch_size, self.source.at(devices, 0), self.traffic)

    def work(self, asked: Asked, failed: NDArray[np.bool_], round: int) -> tuple[Workload, Timed]:
        """Return what fits before the deadline, or before the first K replies where more devices are asked."""
        cohort, solver = asked.cohort, self.config.solver
        devices = self.source.at(cohort.devices, round)
        per_epoch = np.asarray(steps_per_epoch(cohort.samples, solver.batch_size))
        most = per_epoch * solver.epochs
        needed = seconds_for(most, cohort.samples, solver.batch_size, devices, self.traffic)
        deadline = deadline_seconds(self.config.systems.deadline, needed)
        left = self.source.seconds_left(cohort.devices, asked.start)
        surplus = np.zeros(len(cohort), bool)
        if number_asked(self.config.systems, self.config.devices.per_round) > self.config.devices.per_round:
            arrives = ~failed & (needed <= np.minimum(left, deadline))
            first = first_replies(needed, arrives, cohort.draws, self.config.devices.per_round)
            if first is not None:
                deadline, surplus = float(needed[first].max()), arrives & ~first
        limit = np.minimum(left, deadline)
        budget = steps_within(limit, most, cohort.samples, solver.batch_size, devices, self.traffic)
        work = Workload((budget < most) | surplus, budget / per_epoch, budget)
        return work, Timed(asked, devices, deadline, limit, solver.batch_size, self.traffic)


def build_clock(config: Config, population: Population, traffic: Traffic) -> Clock | None:
    """Return the clock that the config names for the devices of a population; None where it names none."""
    if config.systems.model != "clock":
        return None
    return Clock(config, build_source(config, population), traffic)
