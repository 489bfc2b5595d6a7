"""The loop: sample, give budgets, solve locally, merge, measure, record. It exists once, for every method.

>>> result = train({"rounds": 2, "devices": {"stragglers": 0.9}, "method": {"mu": 1.0}})
>>> len(result.history), result.summary["ended"]
(3, 'finished')
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox import __version__, data, methods, models, mu, solvers
from fedprox.config import Config
from fedprox.engines import LocalEngine, Resident, Task
from fedprox.errors import ConfigError
from fedprox.files import read_tensors
from fedprox.history import History
from fedprox.measures import Measurer, Measures
from fedprox.methods import Method
from fedprox.models import Model
from fedprox.population import Population
from fedprox.randomness import Purpose, words
from fedprox.run_folder import Checkpoint, RunFolder, read_history
from fedprox.runtime import Workers, prepare
from fedprox.sampling import check_sampling, draw_cohort, merge_weights
from fedprox.solvers import Solver
from fedprox.stopping import Outcome
from fedprox.systems import straggler_work
from fedprox.trees import Tree, flatten_names, to_numpy, unflatten_names

__all__ = ["Callback", "Progress", "Result", "train"]


@dataclass(frozen=True)
class Progress:
    """What a callback is told after every round, and once for the initial model (round 0)."""

    round: int
    rounds: int
    metrics: Mapping[str, Any] | None  # None where the round was not measured
    devices: Mapping[str, Any] | None  # None for round 0
    params: Tree


Callback = Callable[[Progress], bool | None]
"""Called after every round; returning True ends the run there."""


@dataclass(frozen=True)
class Result:
    """What a run gives.

    Attributes:
      history: one row per measured round (`history.to_pandas()`, `history.to_polars()`).
      devices: one row per round: who took part, and how.
      params: the final parameters.
      summary: the outcome in a few values.
    """

    history: History
    devices: History
    params: Tree
    summary: dict[str, Any]

    def _repr_html_(self) -> str:
        from fedprox.notebook import run_html

        return run_html(self.history, self.summary)


def train(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    population: Population | None = None,
    model: Model | None = None,
    method: Method | None = None,
    solver: Solver | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Run a federated optimisation.

    Args:
      config: a `Config`, a dict of settings or the path of a TOML file.
      population, model, method, solver: objects that replace what the config names.
      callbacks: called after every round with a `Progress`.
      out: the run folder to write; nothing is written without it.
      resume: continue the run that is in `out`.

    >>> result = train({"rounds": 1, "data": {"name": "synthetic_iid"}})
    >>> round(result.history[0]["train_loss"], 4)  # log 10: all classes are equally likely at the start
    2.3026
    """
    started = time.perf_counter()
    config = Config.of(config)
    prepare()
    population = population or data.load(config.data)
    check_sampling(config.devices.sampling, config.devices.per_round, population.devices)
    model = model or _model(config, population)
    params = _initial(config, model)
    folder = RunFolder(out, config, resume=resume) if out is not None else None
    try:
        run = _Run(config, population, model, method or methods.build(config.method), solver, params, folder, started)
        return run.to_the_end(callbacks)
    finally:
        if folder is not None:
            folder.close()


class _Run:
    """The state of a run between rounds, and the steps of a round."""

    def __init__(
        self,
        config: Config,
        population: Population,
        model: Model,
        method: Method,
        solver: Solver | None,
        params: Tree,
        folder: RunFolder | None,
        started: float,
    ) -> None:
        self.config = config
        self.population = population
        self.method = method
        self.params = params
        self.folder = folder
        self.mu = mu.build(config.method)
        self.round = 0
        self.history, self.devices, self.outcome = History(), History(), Outcome()
        self.seconds_before = 0.0
        self.started = started
        self.workers = Workers(config.engine.workers)
        train_data = Resident.of(population.train)
        self.engine = LocalEngine(
            population,
            train_data,
            model,
            solver or solvers.build(config.solver),
            self.workers,
            seed=config.seed,
            batch_size=config.solver.batch_size,
            learning_rate=config.solver.learning_rate,
        )
        self.measurer = Measurer(
            population,
            train_data,
            model,
            self.workers,
            seed=config.seed,
            sample=config.measure.devices,
            gradients=config.measure.dissimilarity,
        )
        self.compile_seconds = self._compile()

    def to_the_end(self, callbacks: Sequence[Callback]) -> Result:
        """Run all rounds that are left."""
        try:
            resumed = self._restore()
            if not resumed:
                self._tell(callbacks, self._measure(solve_seconds=0.0), None)
            ended = "finished"
            while self.round < self.config.rounds:
                devices = self._run_round()
                metrics = self._measure(devices["solve_seconds"]) if self._is_measured() else None
                self._record_devices(devices)
                stop = self._tell(callbacks, metrics, devices)
                reason = self._reason_to_stop("stopped" if stop else None)
                if reason or self.round % self.config.checkpoint.every == 0:
                    self._save()
                if reason:
                    ended = reason
                    break
            return self._finish(ended)
        finally:
            self.workers.close()

    def _run_round(self) -> dict[str, Any]:
        """Take one round t -> t + 1 of Algorithm 1 or 2, and return its record."""
        config, clock = self.config, time.perf_counter()
        self.round += 1
        cohort = draw_cohort(
            config.devices.sampling,
            config.devices.per_round,
            self.population.train.offsets,
            seed=config.seed,
            round=self.round,
        )
        work = straggler_work(
            cohort,
            per_round=config.devices.per_round,
            share=config.devices.stragglers,
            epochs=config.solver.epochs,
            batch_size=config.solver.batch_size,
            seed=config.seed,
            round=self.round,
        )
        kept = self.method.kept(work)
        weights = merge_weights(config.devices.sampling, cohort, kept)
        tasks = [
            Task(int(device), int(budget), float(weight)) if keep else None
            for device, budget, weight, keep in zip(cohort.devices, work.budget, weights, kept, strict=True)
        ]
        merged, steps = self.engine.solve(self.round, tasks, self.params, self._round_mu())
        if kept.any():
            self.params = merged
        return {
            "round": self.round,
            "solve_seconds": time.perf_counter() - clock,
            "device": cohort.devices,
            "samples": cohort.samples,
            "draws": cohort.draws,
            "straggler": work.straggler,
            "epochs": work.epochs,
            "budget": work.budget,
            "steps": steps,
            "kept": kept,
            "weight": weights,
        }

    def _round_mu(self) -> float:
        return self.mu.mu if self.method.proximal else 0.0

    def _is_measured(self) -> bool:
        return self.round % self.config.measure.every == 0 or self.round == self.config.rounds

    def _measure(self, solve_seconds: float) -> dict[str, Any]:
        """Measure the current model and let mu and the outcome see its loss."""
        used_mu, clock = self._round_mu(), time.perf_counter()
        measures = self.measurer.measure(self.params)
        self.outcome.see(self.round, measures.train_loss)
        self.mu = self.mu.after(measures.train_loss)
        record = {
            "round": self.round,
            **_finite(measures, self.config.measure.dissimilarity),
            "mu": used_mu,
            "seconds": self._seconds(),
            "solve_seconds": solve_seconds,
            "measure_seconds": time.perf_counter() - clock,
        }
        self.history.append(record)
        if self.folder is not None:
            self.folder.metrics(record)
        return record

    def _record_devices(self, record: dict[str, Any]) -> None:
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in record.items()}
        self.devices.append(plain)
        if self.folder is not None:
            self.folder.devices(plain)

    def _tell(self, callbacks: Sequence[Callback], metrics: Any, devices: Any) -> bool:
        progress = Progress(self.round, self.config.rounds, metrics, devices, self.params)
        answers = [callback(progress) for callback in callbacks]  # all are told, also after one has said stop
        return any(answers)

    def _reason_to_stop(self, asked: str | None) -> str | None:
        if self.config.stop.diverged and self.outcome.diverged_round is not None:
            return "diverged"
        if self.config.stop.converged and self.outcome.converged_round is not None:
            return "converged"
        return asked

    def _save(self) -> None:
        if self.folder is not None:
            state = {"mu": self.mu.state(), "seconds": self._seconds()}
            self.folder.save(Checkpoint(self.round, flatten_names(self.params), state))

    def _restore(self) -> bool:
        """Go back to the folder's checkpoint, if there is one."""
        if self.folder is None or self.folder.checkpoint is None:
            return False
        checkpoint = self.folder.checkpoint
        self.round = checkpoint.round
        self.params = unflatten_names(checkpoint.tensors, like=self.params)
        self.mu = mu.restore(self.mu, checkpoint.state["mu"])
        self.seconds_before = checkpoint.state["seconds"]
        self.history = read_history(self.folder.path, "metrics")
        self.devices = read_history(self.folder.path, "devices")
        for row in self.history:
            self.outcome.see(row["round"], row["train_loss"])
        return True

    def _finish(self, ended: str) -> Result:
        last = self.history[-1]
        summary = {
            "ended": ended,
            "rounds": self.round,
            "converged_round": self.outcome.converged_round,
            "diverged_round": self.outcome.diverged_round,
            "not_finite_since": self.outcome.not_finite_since,
            "result": {
                name: last[name] for name in ("round", "train_loss", "train_accuracy", "test_accuracy") if name in last
            },
            "seconds": self._seconds(),
            "compile_seconds": self.compile_seconds,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "workers": self.workers.count,
            "versions": {"fedprox": __version__, "jax": jax.__version__, "numpy": np.__version__},
        }
        if self.folder is not None:
            self._save()
            evaluation = self.measurer.per_device(self.params)
            named = [{**row, "name": self.population.name(row["device"])} for row in evaluation]
            self.folder.finish(flatten_names(self.params), named, summary)
        return Result(self.history, self.devices, self.params, summary)

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def _compile(self) -> float:
        clock = time.perf_counter()
        self.engine.compile(self.params)
        self.measurer.compile(self.params)
        return time.perf_counter() - clock


def _model(config: Config, population: Population) -> Model:
    if population.classes == 0:
        raise ConfigError("`model` must be given for data whose y are not labels; the ready-made models classify")
    name = config.model.name or data.paper_model(config.data)
    return models.build(name, population.shape, population.classes)


def _initial(config: Config, model: Model) -> Tree:
    """Return w^0: drawn for the seed, or read from `model.init`."""
    key_words = words(1, config.seed, Purpose.INITIAL_MODEL).view(np.uint32)
    params = to_numpy(model.init(jax.random.wrap_key_data(jax.numpy.asarray(key_words))))
    if not config.model.init:
        return params
    path = Path(config.model.init)
    file = path / "model.safetensors" if path.is_dir() else path
    named, _ = read_tensors(file)
    try:
        return unflatten_names(named, like=params)
    except ValueError as error:
        raise ConfigError(f"`model.init` must fit the model {model.name}: {error}; got {config.model.init!r}") from None


def _finite(measures: Measures, dissimilarity: bool) -> dict[str, float | None]:
    """Return the measures with None in place of what is not finite."""
    names = ["train_loss", "train_accuracy", "test_accuracy"]
    if dissimilarity:
        names += ["gradient_variance", "dissimilarity"]
    values = {name: getattr(measures, name) for name in names}
    return {name: value if value is None or np.isfinite(value) else None for name, value in values.items()}
