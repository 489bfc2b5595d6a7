"""How to build the devices' side of a run in another process: settings, and the objects that replace them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedprox import data, methods
from fedprox.config import Config
from fedprox.config.part_search import add_folders
from fedprox.engines.device_side import DeviceSide
from fedprox.engines.small_devices import FEWEST
from fedprox.methods import Method
from fedprox.methods.parameter_roles import assign_roles
from fedprox.methods.solver_choice import SolverChoice, choose_solver
from fedprox.models import Model
from fedprox.participation.clock.over_selection import number_asked
from fedprox.population import Population, Samples
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.privacy import build_mechanism
from fedprox.solvers import Solver
from fedprox.solvers.schedules import Schedule, build_changing

__all__ = ["Blueprint", "device_side"]


def device_side(
    config: Config,
    samples: Samples,
    loaded: LoadedSamples,
    model: Model,
    method: Method,
    solver_for: Callable[[int], Solver],
    *,
    schedule: Schedule | None = None,
    ahead: Callable[[Iterator[Any]], Iterator[Any]] = iter,
) -> DeviceSide:
    """Return the devices' side of a run; everything that solves for a device is built here.

    `schedule` takes the place of the one that the config names.
    """
    return DeviceSide(
        model=model,
        method=method,
        solver_for=solver_for,
        samples=samples,
        loaded=loaded,
        seed=config.seed,
        batch_size=config.solver.batch_size,
        learning_rate=config.solver.learning_rate,
        gamma=config.solver.gamma,
        ahead=ahead,
        mechanism=build_mechanism(config),
        schedule=build_changing(config.solver, config.rounds, schedule),
        gammas=config.measure.gamma,
        lanes=config.engine.lanes if _may_form_groups(config) else 1,
    )


def _may_form_groups(config: Config) -> bool:
    """Return whether a round may ask enough devices; servers that merge replies as they come collect any number."""
    if config.systems.server in ("buffered", "asynchronous"):
        return True
    return number_asked(config.systems, config.devices.per_round) >= FEWEST


@dataclass(frozen=True)
class Blueprint:
    """A run's settings as plain values; where an object replaces what they name, that object.

    `folders` is the search path for modules that the settings name.
    """

    settings: dict[str, Any]
    model: Model | None = None
    method: Method | None = None
    solver: SolverChoice | None = None
    folders: Sequence[str] = ()
    schedule: Schedule | None = None

    def build(self, population: Population) -> DeviceSide:
        """Build the devices' side with the builders that `fedprox.train` uses.

        >>> from fedprox.data import synthetic
        >>> Blueprint({"method": {"name": "feddyn"}}).build(synthetic(1.0, 1.0, devices=2)).method.name
        'feddyn'
        """
        add_folders(self.folders)
        config = Config.from_dict(self.settings)
        model = self.model or data.model_for(config, population)
        method = self.method or methods.build(config.method, config.seed)
        roles = assign_roles(config, model, method)
        model, method = roles.of_model(model), roles.of_method(method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning was given where the blueprint was made
            solver_for = choose_solver(config, self.solver, method)
        loaded = LoadedSamples.of(population.train, model)
        return device_side(config, population.train, loaded, model, method, solver_for, schedule=self.schedule)
