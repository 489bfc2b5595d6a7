"""The loop: plan a round, solve locally, merge, measure, record. It exists once, for every method and every engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat, takewhile
from operator import is_not
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox import __version__
from fedprox.core.own_code import own_hooks
from fedprox.core.signals import interrupts_between_rounds
from fedprox.core.trees import Tree, flatten_names, quiet, squared_distance
from fedprox.engines import Engine, RoundOutcome
from fedprox.measures import Measures, Measuring
from fedprox.methods import mu
from fedprox.participation.known_devices import update_known
from fedprox.privacy import build_accountant
from fedprox.runs.device_models import DeviceModels, gathered
from fedprox.runs.folder import is_measured
from fedprox.training.journal import Journal
from fedprox.training.merge_step import MergeStep
from fedprox.training.plan import RoundPlan
from fedprox.training.result import Callback, Progress, Result
from fedprox.training.round_records import (
    bytes_sent,
    clipped,
    finite,
    gamma_summary,
    learning_rate,
    staleness_summary,
    stopped_by,
)
from fedprox.training.run_parts import RunParts
from fedprox.training.servers import build_server

__all__ = ["run_training"]

_NO_LOSS = (
    "the loss of the initial model is not a finite number: its parameters must be finite, a classifier must have an "
    "output for each class (the data have {classes}), and codes of characters must be below the number of classes"
)


def run_training(
    parts: RunParts, engine: Engine, measurer: Measuring, journal: Journal, callbacks: Sequence[Callback] = ()
) -> Result:
    """Run all remaining rounds, wherever the devices work and whatever measures the model."""
    with interrupts_between_rounds() as interrupted:
        return _Run(parts, engine, measurer, journal).to_the_end(callbacks, interrupted)


class _Run:
    """A run in progress: its parts, its records and the steps of a round."""

    def __init__(self, parts: RunParts, engine: Engine, measurer: Measuring, journal: Journal) -> None:
        self.parts = parts
        self.config, self.population, self.method = parts.config, parts.population, parts.method
        self.state = parts.state
        self.engine = engine
        self.measurer = measurer
        self.journal = journal
        self.accountant = build_accountant(parts.config, parts.population.devices)
        self.merge_step = MergeStep(parts)
        self.server = build_server(parts, engine, self.merge_step, self._save, self._losses)

    def to_the_end(self, callbacks: Sequence[Callback], interrupted: Callable[[], bool]) -> Result:
        """Run all remaining rounds, or until a callback, `[stop]` or an interrupt ends the run."""
        clock = time.perf_counter()
        with own_hooks():
            self.engine.compile(self.state.params)
            self.measurer.compile(self.state.params)
        compile_seconds = time.perf_counter() - clock
        saved = self.journal.go_back(self.state, self.method, self.engine.secure)
        if saved is not None:
            self.engine.restore(saved)
            self.server.resume()
            if (reason := self.journal.reason_to_stop()) is not None:  # ended after its last checkpoint
                return self._finish(reason, compile_seconds)
        else:
            metrics = self._measure({"solve_seconds": 0.0}, mu.Signals(None))
            if metrics is not None and metrics["train_loss"] is None:
                warnings.warn(_NO_LOSS.format(classes=self.population.classes), stacklevel=2)
            asked = self._tell(callbacks, metrics, None)
            if asked is not None:
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

    @own_hooks()
    @quiet
    def _run_round(self) -> tuple[dict[str, Any], mu.Signals]:
        """Take one round t -> t + 1 and return its record, and the signals for mu."""
        clock = time.perf_counter()
        state, before = self.state, self.state.params
        used_mu = self.method.subproblem_mu(mu.current_mu(state.controller))
        plan, outcome, repeated = self.server.next_round()
        self.merge_step.merge(plan, outcome)
        if any(map(is_not, outcome.states, repeat(None))):
            for device, remembered in zip(plan.cohort.devices.tolist(), outcome.states, strict=True):
                if remembered is not None:
                    state.devices[device] = remembered
        state.round = plan.round
        solve_seconds = time.perf_counter() - clock - outcome.gamma_seconds
        record = {"round": plan.round, "solve_seconds": solve_seconds, **plan.record(), "steps": outcome.steps}
        record |= self._count(plan, outcome)
        record["mu"] = used_mu
        if outcome.gammas is not None:
            record["gamma"] = outcome.gammas
        if self.config.solver.gamma > 0:
            record["stopped_by"] = stopped_by(plan, outcome, self.config.solver.gamma, self.parts.solver_for)
        if self.merge_step.is_attacked:
            record["attacker"] = self.merge_step.attackers[plan.cohort.devices].tolist()
        if self.merge_step.mechanism is not None:
            record["clipped"] = clipped(outcome, self.merge_step.mechanism.clip)
        record |= outcome.columns
        if repeated:
            record["repeated"] = list(repeated)
        return record, self._signals(plan, outcome, before) if mu.learns(state.controller) else mu.Signals(None)

    def _signals(self, plan: RoundPlan, outcome: RoundOutcome, before: Tree) -> mu.Signals:
        """Return the signals of a round for mu, except those measured after it."""
        drift2 = tuple(drift for drift in outcome.drift2 if drift is not None)
        mean = self.method.averaged_model(outcome.averaged, self.state.params)
        coverage = float(plan.cohort.samples[plan.kept].sum() / len(self.population.train))
        return mu.Signals(
            None,
            tuple(plan.weights[plan.kept].tolist()),
            drift2,
            squared_distance(self.method.shared(mean), self.method.shared(before)),
            coverage,
        )

    def _count(self, plan: RoundPlan, answer: RoundOutcome) -> dict[str, Any]:
        """Add up the bytes of a round and advance the clock; return the fields of its record."""
        sent = answer.bytes or bytes_sent(plan, self.parts.traffic)
        self.state.bytes += sum(sent)
        if plan.timed is None:
            return {}
        seconds = plan.timed.seconds(answer.steps, plan.kept)
        all_replied = bool(plan.kept.all()) and not plan.work.straggler.any()
        self.state.simulated_seconds = plan.timed.end(seconds, all_replied)
        self.state.wasted_seconds += float(seconds[~plan.kept].sum())
        return {"seconds": seconds.tolist(), "bytes": sent}

    @own_hooks()
    def _measure(self, round_record: Mapping[str, Any], signals: mu.Signals) -> dict[str, Any] | None:
        """Measure the model if its round is a measured one; update mu and the outcome."""
        state, clock = self.state, time.perf_counter()
        used_mu = round_record.get("mu", self.method.subproblem_mu(mu.current_mu(state.controller)))
        is_due = is_measured(state.round, self.config)
        measures = self._measure_models() if is_due else None
        if measures is not None:
            signals = replace(signals, loss=measures.train_loss, dissimilarity=measures.dissimilarity)
        state.controller = mu.after(state.controller, signals)
        if state.round and self.parts.own_choices.has_own_sampler(self.config):
            listed, seconds = round_record["device"], round_record.get("seconds")
            losses = self._losses(np.array(listed, np.int64))
            state.known = update_known(state.known, state.round, listed, losses, seconds)
        if measures is None:
            return None
        record = {
            "round": state.round,
            **finite(measures, self.config.measure.dissimilarity),
            **gamma_summary(round_record.get("gamma")),
            **staleness_summary([*self._rounds_since_measured(), round_record]),
            **(self.accountant.record(self._released) if self.accountant else {}),
            "mu": used_mu,
            **learning_rate(self.config, state.round, self.parts.schedule),
            **self._sent_so_far(),
            "seconds": self.journal.seconds,
            "solve_seconds": round_record["solve_seconds"],
            "measure_seconds": time.perf_counter() - clock,
        }
        self.journal.metrics(record)
        return record

    def _losses(self, devices: NDArray[np.int64]) -> Mapping[int, float]:
        """Return F_k of the current model, for some devices."""
        return self.measurer.losses_of(self.state.params, devices, self._own_models())

    def _rounds_since_measured(self) -> list[Mapping[str, Any]]:
        """Return the records of the rounds since the last measured one, without the current one."""
        if not self.journal.history:
            return []
        measured = self.journal.history[-1]["round"]
        return list(takewhile(lambda row: row["round"] > measured, reversed(self.journal.devices)))

    def _measure_models(self) -> Measures | None:
        """Measure the model, and the devices' second models if the method has them."""
        measures = self.measurer.measure(self.state.params, self._own_models())
        if measures is None or not self.method.personal_models:
            return measures
        accuracies = self.measurer.personal_accuracies(self.state.params, self._personal_models())
        return replace(measures, own={**measures.own, **accuracies})

    def _own_models(self) -> Mapping[int, Tree]:
        """Return the models of the devices that are measured with their own."""
        return self._models(self.method.device_model) if self.method.own_models else {}

    def _personal_models(self) -> Mapping[int, Tree]:
        """Return the second models of the devices that have taken part."""
        return self._models(self.method.personal_model) if self.method.personal_models else {}

    def _models(self, model_of: Callable[[Tree, Tree], Tree]) -> Mapping[int, Tree]:
        return DeviceModels(self.state.devices, self.engine.secure, partial(model_of, self.state.params))

    def _evaluation(self) -> list[dict[str, Any]]:
        """Return one record per device of the final model, with its name and the results of its second model."""
        personal = self._personal_models() if self.method.personal_models else None
        rows = self.measurer.per_device(self.state.params, self._own_models(), personal)
        return [{**row, "name": self.population.name(row["device"])} for row in rows]

    def _sent_so_far(self) -> dict[str, Any]:
        if self.parts.clock is None:
            return {"bytes": self.state.bytes}
        times = {"simulated_seconds": self.state.simulated_seconds, "wasted_seconds": self.state.wasted_seconds}
        return {"bytes": self.state.bytes, **times}

    def _tell(self, callbacks: Sequence[Callback], metrics: Any, devices: Any) -> str | None:
        """Call the callbacks after a round, and return why they end the run, if they do."""
        progress = Progress(self.state.round, self.config.rounds, metrics, devices, self.state.params)
        try:
            answers = [callback(progress) for callback in callbacks]  # all are called, even after one has returned True
        except KeyboardInterrupt:  # the round is complete, so that what was done can be kept
            return "interrupted"
        return "stopped" if any(answers) else None

    @own_hooks()
    def _save(self) -> None:
        self.journal.save(self.state, self.engine.values())

    @property
    def _released(self) -> int:
        """How many rounds have been sent out, which determines the privacy loss."""
        return self.state.round if self.parts.released is None else self.parts.released()

    @own_hooks()
    def _finish(self, ended: str, compile_seconds: float) -> Result:
        spent = self.accountant and {**self.accountant.record(self._released), "delta": self.accountant.delta}
        summary = {
            **self.journal.summary(ended, self.state.round),
            **({"privacy": spent} if spent else {}),
            **self._sent_so_far(),
            **({"own_models": True} if self.method.own_models else {}),
            **({"personal_models": True} if self.method.personal_models else {}),
            "compile_seconds": compile_seconds,
            "workers": self.engine.workers,
            "devices": self.population.devices,
            "train_samples": len(self.population.train),
            **({} if self.population.labels is None else {"labels": list(self.population.labels)}),
            "versions": {"fedprox": __version__, "jax": jax.__version__, "numpy": np.__version__},
            **self.engine.summary(),
        }
        params, folder = self.state.params, self.journal.folder
        if folder is not None:
            self._save()
            folder.finish(flatten_names(params), self._evaluation(), summary)
        personal = gathered(self._personal_models() or self._own_models())
        return Result(self.journal.history, self.journal.devices, params, summary, personal=personal)
