"""The server of a real federation: the one loop, with Flower as its engine and devices' reports as its measures.

It writes the same run folder as a simulation. It can be killed at any moment and resumed from its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedprox import methods
from fedprox.config import Config
from fedprox.core.files import json_line, write_atomically
from fedprox.core.trees import Tree
from fedprox.deploy.engine import FlowerEngine
from fedprox.deploy.flower_arrivals import FlowerArrivals
from fedprox.deploy.measured_speeds import trace_rows
from fedprox.deploy.measuring import ReportMeasurer
from fedprox.deploy.message_exchange import Post
from fedprox.deploy.personal_versions import PersonalVersions
from fedprox.deploy.release_count import Releases
from fedprox.deploy.reply_log import ReplyLog
from fedprox.deploy.roster import Roster
from fedprox.deploy.settings import check_deployable, check_limit, resume_flag, run_settings
from fedprox.deploy.work_times import WorkTimes
from fedprox.methods import Method, merging, mu
from fedprox.methods.parameter_roles import assign_roles
from fedprox.methods.solver_choice import choose_solver
from fedprox.methods.traffic import measure_traffic
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.participation.own_choices import OwnChoices
from fedprox.privacy import check_private, system_normals
from fedprox.runs.deployed import describe_deployed
from fedprox.runs.folder import RunFolder
from fedprox.runs.replaced import Replaced, describe_part, describe_parts
from fedprox.solvers import Solver
from fedprox.training.journal import Journal
from fedprox.training.loop import run_training
from fedprox.training.result import Callback, Result
from fedprox.training.run_parts import RunParts
from fedprox.training.servers.server_check import check_late, check_server
from fedprox.training.state import State

__all__ = ["run_federation", "server_app"]

_ROUNDS, _REPLIES = 5, 50  # that limits of norms and times follow


def server_app(
    settings: str | Path,
    model: Callable[[Config], Model],
    solver: Callable[[Config], Solver] | None = None,
    *,
    method: Callable[[Config], Method] | None = None,
    mu_controller: Callable[[Config], mu.MuController] | None = None,
    callbacks: Sequence[Callback] = (),
) -> ServerApp:
    """Return the Flower app of the server.

    Args:
      settings: the app's TOML file; Flower's run config may change it (`set`), names the run folder (`out`) and says
        whether to continue what is there (`resume`).
      model: the model for a config.
      solver, method, mu_controller: what takes the place of what the config names, for a config.
      callbacks: called after every round with a `Progress`; one that returns True ends the run.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = run_settings(settings, context.run_config)
        run_federation(
            config,
            model(config),
            grid,
            str(context.run_config["out"]),
            solver=solver(config) if solver is not None else None,
            method=method(config) if method is not None else None,
            mu_controller=mu_controller(config) if mu_controller is not None else None,
            callbacks=callbacks,
            resume=resume_flag(context.run_config),
            model_source=describe_part(model)["object"],
        )

    return app


def run_federation(
    config: Config,
    model: Model,
    grid: Any,
    out: str | Path,
    *,
    solver: Solver | None = None,
    method: Method | None = None,
    mu_controller: mu.MuController | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    model_source: str | None = None,
) -> Result:
    """Run a federation over a Flower `Grid` and write its run folder; `model_source` names what made the model."""
    started = time.perf_counter()
    check_deployable(config)
    objects = {"method": method, "solver": solver, "mu": mu_controller}
    method = method or methods.build(config.method, config.seed)
    roles = assign_roles(config, model, method)
    personal = PersonalVersions() if roles.personal else None
    method = roles.on_server().of_method(method)
    solver_for = choose_solver(config, solver, method)
    params = initial_params(config, model)
    controller = mu_controller or mu.build(config, config.deploy.devices)
    state = State.start(params, method, controller)
    check_private(config.privacy, method, state.controller, config.deploy.devices)
    rule = merging.build(config.merge, method, config.privacy, config.devices.per_round)
    check_limit(config, roles.exchanged(params))
    check_server(config, method, rule, None, OwnChoices(), params, config.deploy.devices)
    check_late(config, method, rule, params)
    traffic = measure_traffic(method, params, solver_for(0), learning_rate=config.solver.learning_rate)
    replaced = _replaced(config, objects, params)
    folder = RunFolder(out, config, resume=resume, replaced=replaced, private=True)  # data about people's devices
    try:
        post = Post(grid)
        deploy = config.deploy
        roster = Roster(deploy.devices, post, max_samples=deploy.max_samples, nodes=deploy.nodes)
        roster.gather(deploy.join_seconds)
        population = roster.population()
        releases = _releases(config, folder)
        parts = RunParts(
            config,
            population,
            method,
            solver_for,
            state,
            rule,
            traffic,
            server_noise=system_normals,
            released=None if releases is None else lambda: releases.rounds,
            secret_cohorts=config.privacy.noise_multiplier > 0,
            max_weight=config.deploy.max_weight,
        )
        remembered = _REPLIES if _has_arrivals(config) else _ROUNDS
        times = WorkTimes(config.deploy.deadline, remembered)
        engine = FlowerEngine(config, method, solver_for, roster, post, releases, roles, personal, times, remembered)
        arrivals = _build_arrivals(parts, roster, post, engine, times, folder)
        parts = replace(parts, arrivals=arrivals)
        deployed = describe_deployed(population, model, params, model_source)
        journal = Journal(config, folder, started, replaced, callbacks=callbacks, deployed=deployed)
        busy = None if arrivals is None else arrivals.busy
        measurer = ReportMeasurer(config, roster, post, roles, personal, times, busy)
        result = run_training(parts, engine, measurer, journal, callbacks)
        if (trace := trace_rows(result.devices, population.devices)) is not None:
            write_atomically(folder.path / "trace.jsonl", "".join(map(json_line, trace)).encode())
        return result
    finally:
        folder.close()


def _has_arrivals(config: Config) -> bool:
    """Return whether devices reply at their own pace, and not in rounds that end with a deadline."""
    return config.systems.runs_on_events or config.deploy.late == "merge"


def _build_arrivals(
    parts: RunParts, roster: Roster, post: Post, engine: FlowerEngine, times: WorkTimes, folder: RunFolder
) -> FlowerArrivals | None:
    if not _has_arrivals(parts.config):
        return None
    checks = (engine.messages, times, engine.limits, engine.count_refused)
    return FlowerArrivals(parts, roster, post, *checks, ReplyLog(folder.path))


def _replaced(config: Config, objects: Mapping[str, object | None], params: Tree) -> Replaced:
    """Return the parts that were given as objects and are not what the config names."""
    given = describe_parts(objects, params)
    method = methods.build(config.method, config.seed)
    named: dict[str, Callable[[], object]] = {
        "method": lambda: method,
        "solver": lambda: choose_solver(config, None, method)(0),
        "mu": lambda: mu.build(config, config.deploy.devices),
    }
    return {part: record for part, record in given.items() if record != describe_part(named[part]())}


def _releases(config: Config, folder: RunFolder) -> Releases | None:
    if config.privacy.clip == 0:
        return None
    return Releases(folder.path, folder.checkpoint.round if folder.checkpoint else 0)
