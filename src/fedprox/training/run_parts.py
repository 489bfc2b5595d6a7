"""What a run is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedprox.config import Config
from fedprox.methods import Method
from fedprox.methods.merging import MergeRule
from fedprox.participation.clock import Clock
from fedprox.participation.own_choices import OwnChoices
from fedprox.participation.traffic import Traffic
from fedprox.population import Population
from fedprox.privacy import Normals
from fedprox.solvers import Solver
from fedprox.solvers.schedules import Schedule
from fedprox.training.arrivals import Arrivals
from fedprox.training.state import State

__all__ = ["RunParts"]


@dataclass(frozen=True)
class RunParts:
    """The parts of a run, besides its engine, its measures and its records.

    Attributes:
      state: where it starts; it changes from round to round.
      choices, schedule: objects from Python in place of what the config names.
      server_noise: the source of the server's noise in a round, for private runs; None: the seed's, as in a simulation.
      released: how many rounds have been sent out so far; None: each once, as in a simulation.
      secret_cohorts: whether devices are drawn from the system's randomness, not from the seed.
      max_weight: the largest weight of one device in a merge, and in the sums of a method.
      arrivals: real devices that reply at their own pace; None: rounds are planned, or simulated on a clock.
    """

    config: Config
    population: Population
    method: Method
    solver_for: Callable[[int], Solver]
    state: State
    rule: MergeRule
    traffic: Traffic
    clock: Clock | None = None
    choices: OwnChoices | None = None
    schedule: Schedule | None = None
    server_noise: Normals | None = None
    released: Callable[[], int] | None = None
    secret_cohorts: bool = False
    max_weight: float = 1.0
    arrivals: Arrivals | None = None

    @property
    def own_choices(self) -> OwnChoices:
        """The sampler and the systems model from Python, if there are any."""
        return self.choices or OwnChoices()
