"""The loop: sample, give budgets, solve locally, merge, measure, record. It exists once, for every method.

>>> result = train({"rounds": 2, "devices": {"stragglers": 0.9}, "method": {"mu": 1.0}})
>>> len(result.history), result.summary["ended"]
(3, 'finished')
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox import __version__, data, methods
from fedprox.config import Config
from fedprox.config.part_search import folders
from fedprox.config.parts import is_builtin
from fedprox.config.resolution import names_modules
from fedprox.core.compilation import prepare
from fedprox.core.randomness import Purpose
from fedprox.core.signals import interrupts_between_rounds
from fedprox.core.threads import Workers
from fedprox.core.trees import Tree, flatten_names, quiet, squared_distance
from fedprox.engines import Blueprint, Broadcast, Engine, RoundOutcome, Task
from fedprox.engines.by_name import EngineSetup, open_engine
from fedprox.measures import Measurer
from fedprox.measures.metrics import Metric, Metrics, build_metrics
from fedprox.methods import Method, mu
from fedprox.methods.solver_choice import SolverChoice, choose_solver
from fedprox.methods.traffic import measure_traffic
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.models.loss_shape import check_losses
from fedprox.participation.clock import Clock, build_clock
from fedprox.participation.known_devices import update_known
from fedprox.participation.sampling import check_sampling
from fedprox.participation.traffic import Traffic
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.privacy import build_accountant, build_mechanism, check_private, seeded_normals
from fedprox.runs.folder import RunFolder, check_usable, is_measured
from fedprox.runs.identity import split_config
from fedprox.runs.replaced import describe_parts
from fedprox.solvers import Solver
from fedprox.training.cost import check_start
from fedprox.training.followers import Followers
from fedprox.training.journal import Journal
from fedprox.training.plan import RoundPlan, check_plan, plan_round
from fedprox.training.result import Callback, Progress, Result
from fedprox.training.round_records import bytes_sent, clipped, finite, gamma_summary, learning_rate, stopped_by
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
      population, model, method, solver, mu_controller: objects that replace what the config names.
      metrics: functions of labels and predictions by name, beside those of `measure.metrics`.
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
    followers = Followers(config, out, progress=progress, track=track)
    settings = config.to_dict()
    given = Blueprint(settings, model, method, solver, folders() if names_modules(settings) else ())
    objects = {"data": population, "model": model, "method": method, "solver": solver, "mu": mu_controller}
    population = population or data.load(config)
    check_sampling(config.devices.sampling, config.devices.per_round, population.devices)
    check_start(config, population, mu_controller)
    model = model or data.model_for(config, population)
    method = method or methods.build(config.method, config.seed)
    solver_for = choose_solver(config, solver, method)
    params = initial_params(config, model)
    check_losses(model, params, population.train.x, population.train.y)
    replaced = describe_parts(objects, params, fingerprint=out is not None, recorded=recorded)
    own_metrics = Metrics(build_metrics(config.measure, metrics), model, population)
    controller = mu_controller or mu.build(config.method, config.solver.learning_rate, config.seed)
    state = State(params, method.start(params), controller)
    check_private(config.privacy, method, state.controller, population.devices)
    traffic = measure_traffic(method, params, solver_for(0), learning_rate=config.solver.learning_rate)
    check_plan(config, method)
    clock = build_clock(config, population.devices, traffic)
    if out is not None:
        check_usable(Path(out), config, resume=resume, replaced=replaced)  # before a cluster starts
    with ExitStack() as open_until_the_end:
        open_until_the_end.enter_context(followers)
        workers = Workers(config.engine.local_workers)
        open_until_the_end.callback(workers.close)
        train_data = LoadedSamples.of(population.train, model)
        engine = open_engine(
            EngineSetup(config, given, population, train_data, model, method, solver_for, workers, open_until_the_end)
        )
        measurer = Measurer(
            population,
            train_data,
            model,
            workers,
            seed=config.seed,
            sample=config.measure.devices,
            gradients=config.measure.dissimilarity,
            weighted=config.compat.weighted,
            metrics=own_metrics,
            device_losses=not is_builtin("samplers", config.devices.sampling),
        )
        folder = None
        if out is not None:
            folder = RunFolder(out, config, resume=resume, replaced=replaced)
            open_until_the_end.callback(folder.close)
        journal = Journal(config, folder, started, replaced)
        run = _Run(config, population, method, solver_for, state, traffic, clock, engine, measurer, journal)
        interrupted = open_until_the_end.enter_context(interrupts_between_rounds())
        return followers.ended(run.to_the_end([*callbacks, *followers.callbacks], interrupted))


class _Run:
    """A run under way: its parts, its records and the steps of a round."""

    def __init__(
        self,
        config: Config,
        population: Population,
        method: Method,
        solver_for: Callable[[int], Solver],
        state: State,
        traffic: Traffic,
        clock: Clock | None,
        engine: Engine,
        measurer: Measurer,
        journal: Journal,
    ) -> None:
        self.config = config
        self.population = population
        self.method = method
        self.solver_for = solver_for
        self.state = state
        self.traffic = traffic
        self.clock = clock
        self.engine = engine
        self.measurer = measurer
        self.journal = journal
        self.mechanism = build_mechanism(config)
        self.accountant = build_accountant(config, population.devices)

    def to_the_end(self, callbacks: Sequence[Callback], interrupted: Callable[[], bool]) -> Result:
        """Run all rounds that are left, or until a callback, `[stop]` or an interrupt ends the run."""
        clock = time.perf_counter()
        self.engine.compile(self.state.params)
        self.measurer.compile(self.state.params)
        compile_seconds = time.perf_counter() - clock
        if self.journal.go_back(self.state, self.method) is None:
            asked = self._tell(callbacks, self._measure({"solve_seconds": 0.0}, mu.Signals(None)), None)
            if asked == "interrupted":
                return self._finish(asked, compile_seconds)
        ended = "finished"
        while self.state.round < self.config.rounds:
            record, signals = self._run_round()
            metrics = self._measure(record, signals)
            self.journal.round(record)
            asked = self._tell(callbacks, metrics, record)
            if interrupted() and self.state.round < self.config.rounds:
                asked = "interrupted"
            reason = self.journal.reason_to_stop() or asked
            if reason or self.state.round % self.config.checkpoint.every == 0:
                self._save()
            if reason:
                ended = reason
                break
        return self._finish(ended, compile_seconds)

    @quiet
    def _run_round(self) -> tuple[dict[str, Any], mu.Signals]:
        """Take one round t -> t + 1 and return its record, and what mu may learn from it."""
        clock = time.perf_counter()
        state = self.state
        now = state.simulated_seconds
        plan = plan_round(
            self.config, self.population, self.method, state.round + 1, clock=self.clock, now=now, known=state.known
        )
        tasks = self._tasks(plan)
        mean_gradient = None
        if self.method.needs_gradients:
            mean_gradient = self.engine.mean_gradient(self._gradient_tasks(plan, tasks), state.params)
        sent = self.method.send(state.server, mean_gradient)
        used_mu = self.method.subproblem_mu(state.controller.mu)
        mu_learns = mu.learns(state.controller)
        wants_drift = mu_learns or self.mechanism is not None
        broadcast = Broadcast(plan.round, state.params, sent, used_mu, wants_drift)
        answer = self.engine.solve(tasks, broadcast, gammas=self.config.measure.gamma)
        before, averaged = state.params, answer.averaged
        if self.mechanism is not None:
            normals = seeded_normals(self.config.seed, Purpose.SERVER_NOISE, plan.round)
            averaged = self.mechanism.model(before, averaged, int(plan.kept.sum()), normals)
        if averaged is not None:
            state.params, state.server = self.method.merge(state.server, before, averaged, answer.summed)
        for task, remembered in zip(tasks, answer.states, strict=True):
            if task is not None and remembered is not None:
                state.devices[task.device] = remembered
        state.round = plan.round
        solve_seconds = time.perf_counter() - clock - answer.gamma_seconds
        record = {"round": plan.round, "solve_seconds": solve_seconds, **plan.record()}
        record["steps"] = answer.steps
        record |= self._count(plan, answer)
        record["mu"] = used_mu
        if answer.gammas is not None:
            record["gamma"] = answer.gammas
        if self.config.solver.gamma > 0:
            record["stopped_by"] = stopped_by(plan, answer, self.config.solver.gamma, self.solver_for)
        if self.mechanism is not None:
            record["clipped"] = clipped(answer, self.mechanism.clip)
        return record, _signals(plan, answer, before, state.params) if mu_learns else mu.Signals(None)

    def _tasks(self, plan: RoundPlan) -> list[Task | None]:
        total = len(self.population.train)
        tasks: list[Task | None] = []
        for position, keep in enumerate(plan.kept.tolist()):
            device = int(plan.cohort.devices[position])
            tasks.append(
                Task(
                    device,
                    int(plan.work.budget[position]),
                    float(plan.weights[position]),
                    int(plan.cohort.samples[position]) / total,
                    self.state.devices.get(device),
                )
                if keep
                else None
            )
        return tasks

    def _gradient_tasks(self, plan: RoundPlan, tasks: list[Task | None]) -> list[Task | None]:
        """Return who is asked for a gradient at w^t: the round's own devices, or those of the second draw."""
        if plan.second is None:
            return tasks
        cohort, weights = plan.second.cohort, plan.second.weights.tolist()
        return [
            Task(device, samples, weight, samples / len(self.population.train)) if weight > 0 else None
            for device, samples, weight in zip(cohort.devices.tolist(), cohort.samples.tolist(), weights, strict=True)
        ]

    def _count(self, plan: RoundPlan, answer: RoundOutcome) -> dict[str, Any]:
        """Add up the bytes of a round and move the clock on; return what the record says of them."""
        sent = bytes_sent(plan, self.traffic)
        self.state.bytes += sum(sent)
        if plan.timed is None:
            return {}
        seconds = plan.timed.seconds(answer.steps, plan.kept)
        everybody_in = bool(plan.kept.all()) and not plan.work.straggler.any()
        self.state.simulated_seconds = plan.timed.asked.start + plan.timed.length(seconds, everybody_in)
        return {"seconds": seconds.tolist(), "bytes": sent}

    def _measure(self, round_record: Mapping[str, Any], signals: mu.Signals) -> dict[str, Any] | None:
        """Measure the model if its round is a measured one; let mu and the outcome see what came of the round."""
        state, clock = self.state, time.perf_counter()
        used_mu = round_record.get("mu", self.method.subproblem_mu(state.controller.mu))
        measures = self.measurer.measure(state.params) if is_measured(state.round, self.config) else None
        state.controller = state.controller.after(replace(signals, loss=measures.train_loss if measures else None))
        if not is_builtin("samplers", self.config.devices.sampling) and state.round:
            losses = measures.device_losses if measures else {}
            listed, seconds = round_record["device"], round_record.get("seconds")
            state.known = update_known(state.known, state.round, listed, losses, seconds)
        if measures is None:
            return None
        record = {
            "round": state.round,
            **finite(measures, self.config.measure.dissimilarity),
            **gamma_summary(round_record.get("gamma")),
            **(self.accountant.record(state.round) if self.accountant else {}),
            "mu": used_mu,
            **learning_rate(self.config, state.round),
            **self._sent_so_far(),
            "seconds": self.journal.seconds,
            "solve_seconds": round_record["solve_seconds"],
            "measure_seconds": time.perf_counter() - clock,
        }
        self.journal.metrics(record)
        return record

    def _sent_so_far(self) -> dict[str, Any]:
        on_clock = {} if self.clock is None else {"simulated_seconds": self.state.simulated_seconds}
        return {"bytes": self.state.bytes, **on_clock}

    def _tell(self, callbacks: Sequence[Callback], metrics: Any, devices: Any) -> str | None:
        """Tell the callbacks of a round, and return why they end the run, if they do."""
        progress = Progress(self.state.round, self.config.rounds, metrics, devices, self.state.params)
        try:
            answers = [callback(progress) for callback in callbacks]  # all are told, also after one has said stop
        except KeyboardInterrupt:  # the round is complete, so that what was done can be kept
            return "interrupted"
        return "stopped" if any(answers) else None

    def _save(self) -> None:
        self.journal.save(self.state, self.engine.secure(self.state.devices), {})

    def _finish(self, ended: str, compile_seconds: float) -> Result:
        spent = self.accountant and {**self.accountant.record(self.state.round), "delta": self.accountant.delta}
        summary = {
            **self.journal.summary(ended, self.state.round),
            **({"privacy": spent} if spent else {}),
            **self._sent_so_far(),
            "compile_seconds": compile_seconds,
            "workers": self.engine.workers,
            "devices": self.population.devices,
            "train_samples": len(self.population.train),
            "versions": {"fedprox": __version__, "jax": jax.__version__, "numpy": np.__version__},
        }
        params, folder = self.state.params, self.journal.folder
        if folder is not None:
            self._save()
            evaluation = self.measurer.per_device(params)
            named = [{**row, "name": self.population.name(row["device"])} for row in evaluation]
            folder.finish(flatten_names(params), named, summary)
        return Result(self.journal.history, self.journal.devices, params, summary)


def _signals(plan: RoundPlan, answer: RoundOutcome, before: Tree, after: Tree) -> mu.Signals:
    weights = tuple(plan.weights[plan.kept].tolist())
    drift2 = tuple(drift for drift in answer.drift2 if drift is not None)
    return mu.Signals(None, weights, drift2, squared_distance(after, before))
