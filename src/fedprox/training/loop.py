"""The loop: plan a round, solve locally, merge, measure, record. It exists once, for every method and every engine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox import __version__, attacks
from fedprox.config import Config
from fedprox.core.errors import RunError
from fedprox.core.randomness import Purpose
from fedprox.core.signals import interrupts_between_rounds
from fedprox.core.trees import Tree, flatten_names, quiet, squared_distance
from fedprox.engines import Broadcast, Engine, RoundOutcome, RoundRequest, Shares
from fedprox.measures import Measures, Measuring
from fedprox.methods import Method, Received, merging, mu
from fedprox.methods.merging import MergeRule
from fedprox.participation.clock import Clock
from fedprox.participation.known_devices import update_known
from fedprox.participation.own_choices import OwnChoices
from fedprox.participation.traffic import Traffic
from fedprox.population import Population
from fedprox.privacy import Normals, build_accountant, build_mechanism, seeded_normals
from fedprox.runs.folder import is_measured
from fedprox.solvers import Solver
from fedprox.solvers.schedules import Schedule
from fedprox.training.journal import Journal
from fedprox.training.plan import RoundPlan, plan_round, settle
from fedprox.training.result import Callback, Progress, Result
from fedprox.training.round_records import bytes_sent, clipped, finite, gamma_summary, learning_rate, stopped_by
from fedprox.training.state import State
from fedprox.training.tasks import build_tasks, gradient_tasks

__all__ = ["RunParts", "run_training"]


@dataclass(frozen=True)
class RunParts:
    """What a run is made of, beside where it works, what measures it and where it is recorded.

    Attributes:
      state: where it starts; it changes from round to round.
      choices, schedule: objects from Python in place of what the config names.
      server_noise: the source of the server's noise in a round, for private runs; None: the seed's, as in a simulation.
      released: how many rounds have been sent out so far; None: each once, as in a simulation.
      secret_cohorts: whether devices are drawn from the system's randomness, not from the seed.
      max_weight: the largest weight of one device in a merge, and in the sums of a method.
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


def run_training(
    parts: RunParts, engine: Engine, measurer: Measuring, journal: Journal, callbacks: Sequence[Callback] = ()
) -> Result:
    """Run all rounds that are left, wherever the devices work and whatever measures the model."""
    with interrupts_between_rounds() as interrupted:
        return _Run(parts, engine, measurer, journal).to_the_end(callbacks, interrupted)


class _Run:
    """A run under way: its parts, its records and the steps of a round."""

    def __init__(self, parts: RunParts, engine: Engine, measurer: Measuring, journal: Journal) -> None:
        self.parts = parts
        self.config, self.population, self.method = parts.config, parts.population, parts.method
        self.state = parts.state
        self.engine = engine
        self.measurer = measurer
        self.journal = journal
        self.mechanism = build_mechanism(parts.config)
        self.accountant = build_accountant(parts.config, parts.population.devices)
        self.attackers = attacks.choose_attackers(parts.config, parts.population.devices)

    def to_the_end(self, callbacks: Sequence[Callback], interrupted: Callable[[], bool]) -> Result:
        """Run all rounds that are left, or until a callback, `[stop]` or an interrupt ends the run."""
        clock = time.perf_counter()
        self.engine.compile(self.state.params)
        self.measurer.compile(self.state.params)
        compile_seconds = time.perf_counter() - clock
        saved = self.journal.go_back(self.state, self.method)
        if saved is not None:
            self.engine.restore(saved)
        else:
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
        state, before = self.state, self.state.params
        used_mu = self.method.subproblem_mu(state.controller.mu)
        repeated: list[dict[str, str]] = []
        while True:
            planned = self._plan()
            request = self._request(planned, used_mu)
            outcome = self.engine.solve(request)
            if outcome.shortfall is None:
                break
            repeated.append({str(device): problem for device, problem in outcome.problems.items()})
            self._check_repeats(outcome.shortfall, repeated)
        plan = settle(planned, self.config, self.method, outcome.replied, outcome.cut_off)
        self._merge(plan, outcome)
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
        if self._is_attacked:
            record["attacker"] = self.attackers[plan.cohort.devices].tolist()
        if self.mechanism is not None:
            record["clipped"] = clipped(outcome, self.mechanism.clip)
        record |= outcome.columns
        if repeated:
            record["repeated"] = repeated
        models = (self.method.shared(before), self.method.shared(state.params))
        return record, _signals(plan, outcome, *models) if self._mu_learns else mu.Signals(None)

    @property
    def _is_attacked(self) -> bool:
        return bool(self.attackers.any())

    @property
    def _mu_learns(self) -> bool:
        return mu.learns(self.state.controller)

    @property
    def _choices(self) -> OwnChoices:
        return self.parts.choices or OwnChoices()

    def _plan(self) -> RoundPlan:
        return plan_round(
            self.config,
            self.population,
            self.method,
            self.state.round + 1,
            clock=self.parts.clock,
            now=self.state.simulated_seconds,
            known=self.state.known,
            cohort_seed=secrets.randbits(64) if self.parts.secret_cohorts else None,
            choices=self._choices,
            max_weight=self.parts.max_weight,
        )

    def _request(self, plan: RoundPlan, used_mu: float) -> RoundRequest:
        """Return what the devices of a round are to do; methods that need gradients at w^t gather them here."""
        state, method = self.state, self.method
        tasks = build_tasks(plan, len(self.population.train), state.devices)
        mean_gradient, centre = None, method.centre(state.server, state.params)
        if method.needs_gradients:
            asked = gradient_tasks(plan, tasks, len(self.population.train))
            mean_gradient = self.engine.mean_gradient(asked, centre)
        sent = method.send(state.server, mean_gradient)
        broadcast = Broadcast(plan.round, centre, sent, used_mu, self._mu_learns or self.mechanism is not None)

        def shares(replied: NDArray[np.bool_], cut_off: NDArray[np.bool_]) -> Shares:
            settled = settle(plan, self.config, method, replied, cut_off)
            return Shares(settled.work.straggler, settled.kept, settled.weights)

        every_reply = self.parts.rule.needs_every_reply or method.needs_every_reply or self._is_attacked
        return RoundRequest(
            tasks, broadcast, shares, gammas=self.config.measure.gamma, every_reply=every_reply, merge=self._merged
        )

    def _check_repeats(self, shortfall: str, repeated: Sequence[Mapping[str, str]]) -> None:
        """End the run, in a way that it can be resumed, where a round has been repeated often enough."""
        if len(repeated) > self.config.deploy.repeats:
            self._save()
            raise RunError(f"{shortfall}; it had fewer {len(repeated)} times: {repeated[-1]}")

    def _merge(self, plan: RoundPlan, outcome: RoundOutcome) -> None:
        """Merge the replies of a round into the model and what the server remembers."""
        state, method = self.state, self.method
        averaged, summed = outcome.averaged, outcome.summed
        received = [reply for reply in outcome.replies or () if reply is not None]
        if received and self._is_attacked:
            unmoved = method.unmoved(method.shared(state.params))
            seeds = {"seed": self.config.seed, "round": plan.round}
            received = attacks.corrupt(self.config.attack, received, self.attackers, unmoved, **seeds)
        if received:  # privacy allows no rule or method that asks for them
            state.params, state.server = self._merged(received)
            return
        if self.mechanism is not None:
            seeded = seeded_normals(self.config.seed, Purpose.SERVER_NOISE, plan.round)
            normals = self.parts.server_noise or seeded
            averaged = self.mechanism.model(method.shared(state.params), averaged, int(plan.kept.sum()), normals)
        if averaged is not None:
            state.params, state.server = method.merge(state.server, state.params, averaged, summed)

    def _merged(self, received: Sequence[Received]) -> tuple[Tree, Tree]:
        """Return the model and the server's memory after a merge of replies; of none, as they are."""
        state, method = self.state, self.method
        if not received:
            return state.params, state.server
        if method.needs_every_reply:
            return method.merge_replies(state.server, state.params, received)
        unmoved = method.unmoved(method.shared(state.params))
        averaged, summed = merging.merge_received(self.parts.rule, received, unmoved)
        return method.merge(state.server, state.params, averaged, summed)

    def _count(self, plan: RoundPlan, answer: RoundOutcome) -> dict[str, Any]:
        """Add up the bytes of a round and move the clock on; return what the record says of them."""
        sent = answer.bytes or bytes_sent(plan, self.parts.traffic)
        self.state.bytes += sum(sent)
        if plan.timed is None:
            return {}
        seconds = plan.timed.seconds(answer.steps, plan.kept)
        all_replied = bool(plan.kept.all()) and not plan.work.straggler.any()
        self.state.simulated_seconds = plan.timed.asked.start + plan.timed.length(seconds, all_replied)
        return {"seconds": seconds.tolist(), "bytes": sent}

    def _measure(self, round_record: Mapping[str, Any], signals: mu.Signals) -> dict[str, Any] | None:
        """Measure the model if its round is a measured one; let mu and the outcome see what came of the round."""
        state, clock = self.state, time.perf_counter()
        used_mu = round_record.get("mu", self.method.subproblem_mu(state.controller.mu))
        is_due = is_measured(state.round, self.config)
        measures = self._measure_models() if is_due else None
        state.controller = state.controller.after(replace(signals, loss=measures.train_loss if measures else None))
        if state.round and self._choices.has_own_sampler(self.config):
            losses = measures.device_losses if measures else {}
            listed, seconds = round_record["device"], round_record.get("seconds")
            state.known = update_known(state.known, state.round, listed, losses, seconds)
        if measures is None:
            return None
        record = {
            "round": state.round,
            **finite(measures, self.config.measure.dissimilarity),
            **gamma_summary(round_record.get("gamma")),
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

    def _measure_models(self) -> Measures | None:
        """Measure the model, and beside it the devices' second models where the method has such."""
        measures = self.measurer.measure(self.state.params, self._own_models())
        if measures is None or not self.method.personal_models:
            return measures
        accuracy = self.measurer.personal_accuracy(self.state.params, self._personal_models())
        return replace(measures, own={**measures.own, "personal_test_accuracy": accuracy})

    def _own_models(self) -> dict[int, Tree]:
        """Return the models of the devices that are measured with one of their own."""
        return self._models(self.method.device_model) if self.method.own_models else {}

    def _personal_models(self) -> dict[int, Tree]:
        """Return the second models of the devices that have taken part."""
        return self._models(self.method.personal_model) if self.method.personal_models else {}

    def _models(self, model_of: Callable[[Tree, Tree], Tree]) -> dict[int, Tree]:
        remembered = self.engine.secure(self.state.devices)
        return {device: model_of(self.state.params, each) for device, each in remembered.items()}

    def _evaluation(self) -> list[dict[str, Any]]:
        """Return one record per device of the final model, with its name and what its second model gives."""
        personal = self._personal_models() if self.method.personal_models else None
        rows = self.measurer.per_device(self.state.params, self._own_models(), personal)
        return [{**row, "name": self.population.name(row["device"])} for row in rows]

    def _sent_so_far(self) -> dict[str, Any]:
        on_clock = {} if self.parts.clock is None else {"simulated_seconds": self.state.simulated_seconds}
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
        self.journal.save(self.state, self.engine.secure(self.state.devices), self.engine.values())

    @property
    def _released(self) -> int:
        """How many rounds have been sent out, which is what privacy costs."""
        return self.state.round if self.parts.released is None else self.parts.released()

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
        personal = self._personal_models() or self._own_models()
        return Result(self.journal.history, self.journal.devices, params, summary, personal=personal)


def _signals(plan: RoundPlan, answer: RoundOutcome, before: Tree, after: Tree) -> mu.Signals:
    weights = tuple(plan.weights[plan.kept].tolist())
    drift2 = tuple(drift for drift in answer.drift2 if drift is not None)
    return mu.Signals(None, weights, drift2, squared_distance(after, before))
