"""The loop: sample, give budgets, solve locally, merge, measure, record. It exists once, for every method.

>>> result = train({"rounds": 2, "devices": {"stragglers": 0.9}, "method": {"mu": 1.0}})
>>> len(result.history), result.summary["ended"]
(3, 'finished')
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox import __version__, data, methods, mu
from fedprox.clock import Clock, build_clock
from fedprox.config import Config
from fedprox.engines import Blueprint, Broadcast, Engine, LocalEngine, RoundAnswer, Task, device_side
from fedprox.history import History
from fedprox.initial import initial
from fedprox.measures import Measurer
from fedprox.methods import Method
from fedprox.models import Model
from fedprox.plan import RoundPlan, plan_round
from fedprox.population import Population
from fedprox.privacy import Accountant, check_private, mechanism_of, seeded_normals
from fedprox.randomness import Purpose
from fedprox.resident import Resident
from fedprox.result import Callback, Progress, Result
from fedprox.rows import bytes_sent, clipped, finite, gamma_summary, stopped_by
from fedprox.run_folder import Checkpoint, RunFolder, check_usable, read_history
from fedprox.runtime import Workers, prepare
from fedprox.sampling import check_sampling
from fedprox.solver_choice import SolverChoice, solver_of
from fedprox.state import State
from fedprox.stopping import Outcome
from fedprox.traffic import Traffic, traffic_of
from fedprox.trees import Tree, difference, flatten_names, quiet, squared_norm

__all__ = ["train"]


def train(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    population: Population | None = None,
    model: Model | None = None,
    method: Method | None = None,
    solver: SolverChoice | None = None,
    mu_controller: mu.MuController | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Run a federated optimisation.

    Args:
      config: a `Config`, a dict of settings or the path of a TOML file.
      population, model, method, solver, mu_controller: objects that replace what the config names.
      callbacks: called after every round with a `Progress`; one that returns True ends the run.
      out: the run folder to write; nothing is written without it.
      resume: continue the run that is in `out`.

    >>> result = train({"rounds": 1, "data": {"name": "synthetic_iid"}})
    >>> round(result.history[0]["train_loss"], 4)  # log 10: all classes are equally likely at the start
    2.3026
    """
    started = time.perf_counter()
    config = Config.of(config)
    prepare()
    given = Blueprint(config.to_dict(), model, method, solver)
    population = population or data.load(config)
    check_sampling(config.devices.sampling, config.devices.per_round, population.devices)
    model = model or data.model_for(config, population)
    method = method or methods.build(config.method)
    solver_for = solver_of(config, solver, method)
    params = initial(config, model)
    state = State(params, method.start(params), mu_controller or mu.build(config.method, config.solver.learning_rate))
    check_private(config.privacy, method, state.mu, population.devices)
    traffic = traffic_of(method, params, solver_for(0), learning_rate=config.solver.learning_rate)
    clock = build_clock(config, population.devices, method, traffic)
    if out is not None:
        check_usable(Path(out), config, resume=resume)  # before a cluster starts
    with ExitStack() as open_until_the_end:
        workers = Workers(config.engine.workers if config.engine.name == "local" else 0)
        open_until_the_end.callback(workers.close)
        train_data = Resident.of(population.train)
        engine: Engine
        if config.engine.name == "ray":
            from fedprox.engines.ray import Cluster, RayEngine

            cluster = Cluster(config.engine.address, config.engine.workers)
            open_until_the_end.callback(cluster.close)
            engine = RayEngine(cluster, given, population, method)
        else:
            side = device_side(config, population, train_data, model, method, solver_for, ahead=workers.ahead)
            engine = LocalEngine(side, workers)
        open_until_the_end.callback(engine.close)
        measurer = Measurer(
            population,
            train_data,
            model,
            workers,
            seed=config.seed,
            sample=config.measure.devices,
            gradients=config.measure.dissimilarity,
            weighted=config.compat.weighted,
        )
        folder = None
        if out is not None:
            folder = RunFolder(out, config, resume=resume)
            open_until_the_end.callback(folder.close)
        run = _Run(config, population, method, state, traffic, clock, engine, measurer, folder, started)
        return run.to_the_end(callbacks)


class _Run:
    """A run under way: its parts, its records and the steps of a round."""

    def __init__(
        self,
        config: Config,
        population: Population,
        method: Method,
        state: State,
        traffic: Traffic,
        clock: Clock | None,
        engine: Engine,
        measurer: Measurer,
        folder: RunFolder | None,
        started: float,
    ) -> None:
        self.config = config
        self.population = population
        self.method = method
        self.state = state
        self.traffic = traffic
        self.clock = clock
        self.engine = engine
        self.measurer = measurer
        self.folder = folder
        self.started = started
        self.history, self.devices, self.outcome = History(), History(), Outcome()
        self.mechanism = mechanism_of(config)
        self.accountant = Accountant(
            population.devices, config.devices.per_round, config.privacy.noise_multiplier, config.privacy.delta
        )

    def to_the_end(self, callbacks: Sequence[Callback]) -> Result:
        """Run all rounds that are left."""
        clock = time.perf_counter()
        self.engine.compile(self.state.params)
        self.measurer.compile(self.state.params)
        compile_seconds = time.perf_counter() - clock
        if not self._went_back():
            self._tell(callbacks, self._measure({"solve_seconds": 0.0}, mu.Signals(None)), None)
        ended = "finished"
        while self.state.round < self.config.rounds:
            record, signals = self._run_round()
            metrics = self._measure(record, signals)
            self.devices.append(record)
            if self.folder is not None:
                self.folder.devices(record)
            asked_to_stop = self._tell(callbacks, metrics, record)
            reason = self._reason_to_stop("stopped" if asked_to_stop else None)
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
        plan = plan_round(self.config, self.population, self.method, state.round + 1, clock=self.clock, now=now)
        tasks = self._tasks(plan)
        mean_gradient = None
        if self.method.needs_gradients:
            mean_gradient = self.engine.mean_gradient(self._gradient_tasks(plan, tasks), state.params)
        sent = self.method.send(state.server, mean_gradient)
        used_mu = self.method.mu(state.mu.mu)
        broadcast = Broadcast(plan.round, state.params, sent, used_mu)
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
            record["stopped_by"] = stopped_by(plan, answer)
        if self.mechanism is not None:
            record["clipped"] = clipped(answer, self.mechanism.clip)
        return record, _signals(plan, answer, before, state.params)

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

    def _count(self, plan: RoundPlan, answer: RoundAnswer) -> dict[str, Any]:
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
        used_mu = round_record.get("mu", self.method.mu(state.mu.mu))
        is_measured = state.round % self.config.measure.every == 0 or state.round == self.config.rounds
        measures = self.measurer.measure(state.params) if is_measured else None
        state.mu = state.mu.after(replace(signals, loss=measures.train_loss if measures else None))
        if measures is None:
            return None
        self.outcome.see(state.round, measures.train_loss)
        record = {
            "round": state.round,
            **finite(measures, self.config.measure.dissimilarity),
            **gamma_summary(round_record.get("gamma")),
            **self._privacy_loss(),
            "mu": used_mu,
            **self._sent_so_far(),
            "seconds": self._seconds(),
            "solve_seconds": round_record["solve_seconds"],
            "measure_seconds": time.perf_counter() - clock,
        }
        self.history.append(record)
        if self.folder is not None:
            self.folder.metrics(record)
        return record

    def _privacy_loss(self) -> dict[str, float | None]:
        """Return epsilon of the rounds so far, None where it is infinite; nothing without privacy."""
        if self.mechanism is None:
            return {}
        epsilon = self.accountant.epsilon(self.state.round)
        return {"epsilon": epsilon if np.isfinite(epsilon) else None}

    def _sent_so_far(self) -> dict[str, Any]:
        on_clock = {} if self.clock is None else {"simulated_seconds": self.state.simulated_seconds}
        return {"bytes": self.state.bytes, **on_clock}

    def _tell(self, callbacks: Sequence[Callback], metrics: Any, devices: Any) -> bool:
        progress = Progress(self.state.round, self.config.rounds, metrics, devices, self.state.params)
        answers = [callback(progress) for callback in callbacks]  # all are told, also after one has said stop
        return any(answers)

    def _reason_to_stop(self, asked: str | None) -> str | None:
        if self.config.stop.diverged and self.outcome.diverged_round is not None:
            return "diverged"
        if self.config.stop.converged and self.outcome.converged_round is not None:
            return "converged"
        return asked

    def _save(self) -> None:
        remembered = self.engine.secure(self.state.devices)
        if self.folder is not None:
            values = {**self.state.values(), "seconds": self._seconds()}
            self.folder.save(Checkpoint(self.state.round, self.state.tensors(remembered), values))

    def _went_back(self) -> bool:
        """Go back to the folder's checkpoint, if there is one."""
        if self.folder is None or self.folder.checkpoint is None:
            return False
        saved = self.folder.checkpoint
        self.state.go_back(saved.round, saved.tensors, saved.state, self.method)
        self.started -= saved.state["seconds"]
        self.history = read_history(self.folder.path, "metrics")
        self.devices = read_history(self.folder.path, "devices")
        for row in self.history:
            self.outcome.see(row["round"], row["train_loss"])
        return True

    def _finish(self, ended: str, compile_seconds: float) -> Result:
        last = self.history[-1]
        summary = {
            "ended": ended,
            "rounds": self.state.round,
            "converged_round": self.outcome.converged_round,
            "diverged_round": self.outcome.diverged_round,
            "not_finite_since": self.outcome.not_finite_since,
            "result": {name: last[name] for name in ("round", "train_loss", "train_accuracy", "test_accuracy")},
            **({"privacy": {**self._privacy_loss(), "delta": self.accountant.delta}} if self.mechanism else {}),
            **self._sent_so_far(),
            "seconds": self._seconds(),
            "compile_seconds": compile_seconds,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "workers": self.engine.workers,
            "devices": self.population.devices,
            "train_samples": len(self.population.train),
            "versions": {"fedprox": __version__, "jax": jax.__version__, "numpy": np.__version__},
        }
        params = self.state.params
        if self.folder is not None:
            self._save()
            evaluation = self.measurer.per_device(params)
            named = [{**row, "name": self.population.name(row["device"])} for row in evaluation]
            self.folder.finish(flatten_names(params), named, summary)
        return Result(self.history, self.devices, params, summary)

    def _seconds(self) -> float:
        return time.perf_counter() - self.started


def _signals(plan: RoundPlan, answer: RoundAnswer, before: Tree, after: Tree) -> mu.Signals:
    weights = tuple(plan.weights[plan.kept].tolist())
    drift2 = tuple(drift for drift in answer.drift2 if drift is not None)
    return mu.Signals(None, weights, drift2, squared_norm(difference(after, before)))
