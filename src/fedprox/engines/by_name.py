"""Engines as configs name them.

An engine's callable gets an `EngineSetup` first, with everything that the run has so far, and returns an `Engine`; its
other parameters are keys of `[engine]`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

from fedprox.config import Config
from fedprox.config.parts import build_part
from fedprox.core.errors import ConfigError
from fedprox.core.threads import Workers
from fedprox.engines.build import Blueprint, device_side
from fedprox.engines.local import LocalEngine
from fedprox.engines.outcome import Engine
from fedprox.methods import Method
from fedprox.models import Model
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.solvers import Solver

__all__ = ["EngineSetup", "local_engine", "open_engine", "ray_engine"]

_MEMBERS = ("workers", "compile", "solve", "mean_gradient", "secure", "close")


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is built from.

    Attributes:
      config: of the run.
      blueprint: how to build the devices' side in another process.
      population, train, model, method, solver_for: the parts of the run, with the training samples loaded.
      workers: the threads of this process.
      until_the_end: closes what is registered with it at the end of the run.
    """

    config: Config
    blueprint: Blueprint
    population: Population
    train: LoadedSamples
    model: Model
    method: Method
    solver_for: Callable[[int], Solver]
    workers: Workers
    until_the_end: ExitStack


def open_engine(run: EngineSetup, given: Engine | Callable[[EngineSetup], Engine] | None = None) -> Engine:
    """Return the engine that the config names, or the one given from Python; it is closed at the end of the run."""
    name, engine = run.config.engine.name, given
    if given is None:
        engine = build_part("engines", "engine.name", run.config.engine, {"run": run, "seed": run.config.seed})
    elif callable(given):
        name = getattr(given, "__qualname__", type(given).__qualname__)
        engine = given(run)
    if missing := [member for member in _MEMBERS if not hasattr(engine, member)]:
        raise ConfigError(
            f"`engine.name` must name an engine, which has `{missing[0]}`, or a callable that returns one; "
            f"got {name!r}, which gives {type(engine).__name__}"
        )
    opened = cast(Engine, engine)
    run.until_the_end.callback(opened.close)
    return opened


def local_engine(run: EngineSetup) -> Engine:
    """Return the engine of this process."""
    side = device_side(
        run.config,
        run.population.train,
        run.train,
        run.model,
        run.method,
        run.solver_for,
        schedule=run.blueprint.schedule,
        ahead=run.workers.ahead,
    )
    return LocalEngine(side, run.workers)


def ray_engine(run: EngineSetup) -> Engine:
    """Return the engine of a Ray cluster."""
    from fedprox.engines.ray import Cluster, RayEngine

    cluster = Cluster(run.config.engine.address, run.config.engine.workers)
    run.until_the_end.callback(cluster.close)
    return RayEngine(cluster, run.blueprint, run.population, run.method)
