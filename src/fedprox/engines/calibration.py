"""How many samples per second this machine trains: the unit of a profile's speeds.

One device's subproblem is solved as in a run, with the config's model, method and solver, after everything is compiled.
The device is the one of median size; its budget grows until a solve takes long enough to be timed, and the fastest of
several solves counts, since any disturbance makes a measurement slower.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox import data, methods
from fedprox.config import Config
from fedprox.core.compilation import prepare
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.engines import Broadcast, DeviceSide, Task, device_side
from fedprox.methods import Method
from fedprox.methods.parameter_roles import assign_roles
from fedprox.methods.solver_choice import choose_solver
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.clock import Profile
from fedprox.participation.clock.timing import samples_in
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples

__all__ = ["Speed", "calibrated", "measure_speed"]

_REPEATS = 5


@dataclass(frozen=True)
class Speed:
    """What was measured."""

    samples_per_second: float  # of the fastest solve
    slowest: float  # of the slowest
    model: str
    solver: str
    batch_size: int


def measure_speed(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    population: Population | None = None,
    model: Model | None = None,
    seconds: float = 0.3,
) -> Speed:
    """Time local solves of at least `seconds` each.

    >>> measure_speed({"solver": {"epochs": 1}}, seconds=0.001).samples_per_second > 0
    True
    """
    config = Config.of(config)
    prepare()
    population = population or data.load(config)
    model = model or data.model_for(config, population)
    method = methods.build(config.method)
    roles = assign_roles(config, model, method)
    model, method = roles.of_model(model), roles.of_method(method)
    solver = choose_solver(config, None, method)
    loaded = LoadedSamples.of(population.train, model)
    side = device_side(config, population.train, loaded, model, method, solver)
    side = replace(side, gamma=0.0, mechanism=None)  # steps are timed, not what ends them
    sizes = np.diff(population.train.offsets)
    device = int(np.argsort(sizes, kind="stable")[len(sizes) // 2])
    params = initial_params(config, model)
    epochs = config.solver.epochs * int(steps_per_epoch(int(sizes[device]), config.solver.batch_size))
    budget = _budget(side, device, params, epochs, seconds)
    rates = [_rate(side, device, params, budget) for _ in range(_REPEATS)]
    return Speed(max(rates), min(rates), model.name, config.solver.name, config.solver.batch_size)


def calibrated(profile: Profile, speed: Speed) -> Profile:
    """Return the profile with the measured speed in place of its own."""
    return profile.model_copy(update={"samples_per_second": float(f"{speed.samples_per_second:.4g}")})


def _budget(side: DeviceSide, device: int, params: Tree, budget: int, seconds: float) -> int:
    """Return a budget that takes at least that long, or as much as the solver takes if it stops earlier."""
    _solve(side, device, params, budget)  # compiles
    before = -1
    while True:
        steps, took = _solve(side, device, params, budget)
        if took >= seconds or steps == before:
            return budget
        before, budget = steps, 2 * budget


def _rate(side: DeviceSide, device: int, params: Tree, budget: int) -> float:
    steps, took = _solve(side, device, params, budget)
    samples = side.samples.size(device)
    seen = int(samples_in(np.array([steps]), np.array([samples]), side.batch_size)[0])
    seen += samples if side.method.needs_gradients else 0
    if seen == 0:
        name = side.solver_for(device).name
        raise ConfigError(f"`solver.name` must be a solver that takes steps, so that it can be timed; got {name!r}")
    return seen / took


def _solve(side: DeviceSide, device: int, params: Tree, budget: int) -> tuple[int, float]:
    method: Method = side.method
    zeros = jax.tree.map(np.zeros_like, params)
    sent = method.send(method.start(params), zeros if method.needs_gradients else None)
    task = Task(device, budget, weight=1.0, mass=1.0, state=method.start_device(params))
    broadcast = Broadcast(1, params, sent, 0.0)
    shared = side.shared(broadcast)
    clock = time.perf_counter()
    answer = side.solve(task, broadcast, shared)
    return answer.steps, time.perf_counter() - clock
