"""`fedprox.train`: build what a config and the objects given name, and run the loop.

>>> result = train({"rounds": 2, "devices": {"stragglers": 0.9}, "method": {"mu": 1.0}})
>>> len(result.history), result.summary["ended"]
(3, 'finished')
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedprox import attacks, data, methods
from fedprox.config import Config
from fedprox.config.part_search import folders
from fedprox.config.resolution import names_modules
from fedprox.config.rules import check_schedule
from fedprox.core.compilation import prepare
from fedprox.core.own_code import own_hooks
from fedprox.core.threads import Workers
from fedprox.engines import Blueprint, Engine
from fedprox.engines.by_name import EngineSetup, open_engine
from fedprox.measures import Measurer
from fedprox.measures.metrics import Metric, Metrics, build_metrics
from fedprox.methods import Method, merging, mu
from fedprox.methods.merging import MergeRule
from fedprox.methods.parameter_roles import assign_roles
from fedprox.methods.solver_choice import SolverChoice, choose_solver
from fedprox.methods.traffic import measure_traffic
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.models.model import checked_model
from fedprox.models.model_check import check_functions
from fedprox.participation.clock import build_clock
from fedprox.participation.own_choices import OwnChoices, Sampler, SystemsModel
from fedprox.participation.sampling import check_sampling
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.privacy import check_private
from fedprox.runs.folder import RunFolder, check_out, check_usable
from fedprox.runs.given_kinds import check_given
from fedprox.runs.identity import split_config
from fedprox.runs.replaced import by_part, describe_parts
from fedprox.solvers.schedules import Schedule
from fedprox.training.cost import check_start
from fedprox.training.followers import Followers
from fedprox.training.journal import Journal, StoppingRule
from fedprox.training.loop import run_training
from fedprox.training.result import Callback, Result
from fedprox.training.run_parts import RunParts
from fedprox.training.servers.server_check import check_server
from fedprox.training.state import State

__all__ = ["train"]


def train(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    population: Population | None = None,
    model: Model | None = None,
    method: Method | None = None,
    solver: SolverChoice | None = None,
    mu_controller: mu.MuController | None = None,
    sampler: Sampler | None = None,
    systems: SystemsModel | None = None,
    merge_rule: MergeRule | None = None,
    schedule: Schedule | None = None,
    stopping_rule: StoppingRule | None = None,
    engine: Engine | Callable[[EngineSetup], Engine] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    track: str | Sequence[str] = (),
) -> Result:
    """Run a federated optimisation.

    Args:
      config: a `Config`, a dict of settings, the path of a TOML file or the name of a recipe.
      population, model, method, solver, mu_controller: replaces what the config names.
      sampler, systems, merge_rule, schedule, stopping_rule: replaces what the config names, and is called in the same
        way.
      engine: replaces what the config names: an engine, or a callable that gets an `EngineSetup`.
      metrics: functions of labels and predictions by name, besides those of `measure.metrics`.
      callbacks: called after every round with a `Progress`; one that returns True ends the run.
      out: the run folder to write; nothing is written without it.
      resume: continue the run that is in `out`.
      progress: show a bar on a terminal or in a notebook; elsewhere nothing is printed.
      track: also write metrics for "tensorboard", "mlflow" or "wandb" (one name or several), beside `out`.

    An interrupt (Ctrl-C) ends the run after its round, with `summary["ended"] == "interrupted"`; a second one at once.

    >>> result = train({"rounds": 1, "data": {"name": "synthetic_iid"}})
    >>> round(result.history[0]["train_loss"], 4)  # log 10: all classes are equally likely at the start
    2.3026
    """
    started = time.perf_counter()
    config, recorded = split_config(config)
    config = Config.of(config)
    prepare()
    check_out(out, resume=resume)
    followers = Followers(config, out, name=getattr(method, "name", ""), progress=progress, track=track)
    settings = config.to_dict()
    given = Blueprint(settings, model, method, solver, folders() if names_modules(settings) else (), schedule)
    objects = by_part(
        population=population,
        model=model,
        method=method,
        solver=solver,
        mu_controller=mu_controller,
        sampler=sampler,
        systems=systems,
        merge_rule=merge_rule,
        schedule=schedule,
        stopping_rule=stopping_rule,
        engine=engine,
        metrics=metrics,
    )
    check_given(objects, config, callbacks)
    if schedule is not None:
        check_schedule(config, getattr(schedule, "__qualname__", type(schedule).__qualname__))
    choices = OwnChoices(sampler, systems)
    with own_hooks():
        population = data.load(config) if population is None else data.with_set_aside(config, population)
        if sampler is None:
            check_sampling(config.devices.sampling, config.devices.per_round, population.devices)
        check_start(config, population, mu_controller)
        model = checked_model(model if model is not None else data.model_for(config, population))
        population = attacks.with_flipped_labels(config, data.match_model(population, model))
        method = method or methods.build(config.method, config.seed)
        controller = mu_controller or mu.build(config, population.devices)
        check_private(config.privacy, method, controller, population.devices)
        model, method, measured_model = assign_roles(config, model, method).apply(model, method)
        solver_for = choose_solver(config, solver, method, model)
        params = initial_params(config, model, population.labels)
        check_functions(model, params, population.train.x, population.train.y)
        replaced = describe_parts(objects, params, fingerprint=out is not None, recorded=recorded)
        own_metrics = Metrics(build_metrics(config.measure, metrics), model, population)
        state = State.start(params, method, controller)
        rule = merging.build(config.merge, method, config.privacy, config.devices.per_round, merge_rule)
        attacks.warn_of_bounds(config, rule)
        traffic = measure_traffic(method, params, solver_for(0), learning_rate=config.solver.learning_rate)
        clock = build_clock(config, population, traffic) if systems is None else None
        check_server(config, method, rule, clock, choices, params, population.devices)
    check_usable(out, config, resume=resume, replaced=replaced)  # before a cluster starts
    with ExitStack() as open_until_the_end:
        open_until_the_end.enter_context(followers)
        workers = Workers(config.engine.local_workers)
        open_until_the_end.callback(workers.close)
        train_data = LoadedSamples.of(population.train, model)
        setup = EngineSetup(
            config, given, population, train_data, model, method, solver_for, workers, open_until_the_end
        )
        opened = open_engine(setup, engine)
        measurer = Measurer(
            population,
            train_data,
            measured_model,
            workers,
            seed=config.seed,
            sample=config.measure.devices,
            gradients=config.measure.dissimilarity,
            weighted=config.compat.weighted,
            metrics=own_metrics,
        )
        folder = None if out is None else RunFolder(out, config, resume=resume, replaced=replaced)
        if folder is not None:
            open_until_the_end.callback(folder.close)
        journal = Journal(config, folder, started, replaced, stopping_rule=stopping_rule, callbacks=callbacks)
        parts = RunParts(config, population, method, solver_for, state, rule, traffic, clock, choices, schedule)
        return followers.ended(run_training(parts, opened, measurer, journal, [*callbacks, *followers.callbacks]))
