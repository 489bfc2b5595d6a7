"""The server of a real federation: Algorithm 2 over Flower.

Round by round it draws devices under their own numbers, sends each w^t, mu and a budget, waits until the deadline,
refuses bad replies, merges the others, and writes the same run folder as a simulation. It can be killed at any moment
and resumed from its checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from flwr.app import Context, MessageType
from flwr.serverapp import Grid, ServerApp

from fedprox import __version__, methods
from fedprox.config import Config
from fedprox.core.errors import RunError
from fedprox.core.files import json_line, write_atomically
from fedprox.core.trees import flatten_names
from fedprox.deploy.measured_speeds import trace_rows
from fedprox.deploy.measuring import evaluation_rows, pooled, reason_to_ignore
from fedprox.deploy.merge import linear_terms, merge
from fedprox.deploy.message_exchange import Post
from fedprox.deploy.messages import Evaluation, Instruction, Model, Named, WrongMessageError
from fedprox.deploy.release_count import record_release, released_rounds
from fedprox.deploy.roster import Roster
from fedprox.deploy.round_replies import Collected, sorted_out
from fedprox.deploy.settings import check_deployable, check_limit, resume_flag, run_settings
from fedprox.methods import Method, mu
from fedprox.methods.solver_choice import choose_solver
from fedprox.models import Model as LocalModel
from fedprox.models.initial_model import initial_params
from fedprox.participation.sampling import check_sampling
from fedprox.privacy import build_accountant, check_private
from fedprox.runs.folder import RunFolder, is_measured
from fedprox.solvers import Solver
from fedprox.training.journal import Journal
from fedprox.training.plan import RoundPlan, plan_round
from fedprox.training.result import Result
from fedprox.training.round_records import finite, gamma_summary
from fedprox.training.state import State

__all__ = ["run_federation", "server_app"]

_LOG = logging.getLogger("fedprox.deploy")


def server_app(
    settings: str | Path,
    model: Callable[[Config], LocalModel],
    solver: Callable[[Config], Solver] | None = None,
) -> ServerApp:
    """Return the Flower app of the server.

    Args:
      settings: the app's TOML file; Flower's run config may change it (`set`), names the run folder (`out`) and says
        whether to continue what is there (`resume`).
      model: the model for a config.
      solver: the local solver for a config, where it is not one that the config names.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = run_settings(settings, context.run_config)
        own = solver(config) if solver is not None else None
        resume = resume_flag(context.run_config)
        run_federation(config, model(config), grid, str(context.run_config["out"]), solver=own, resume=resume)

    return app


def run_federation(
    config: Config,
    model: LocalModel,
    grid: Any,
    out: str | Path,
    *,
    solver: Solver | None = None,
    resume: bool = False,
) -> Result:
    """Run a federation over a Flower `Grid` and write its run folder."""
    started = time.perf_counter()
    check_deployable(config)
    method = methods.build(config.method)
    solver_for = choose_solver(config, solver, method)
    params = initial_params(config, model)
    state = State(params, method.start(params), mu.build(config.method, config.solver.learning_rate))
    check_private(config.privacy, method, state.controller, config.deploy.devices)
    check_limit(config, params)
    folder = RunFolder(out, config, resume=resume)
    try:
        return _Run(config, method, solver_for, state, Post(grid), folder, started).to_the_end()
    finally:
        folder.close()


class _Run:
    """A run under way."""

    def __init__(
        self,
        config: Config,
        method: Method,
        solver_for: Callable[[int], Solver],
        state: State,
        post: Post,
        folder: RunFolder,
        started: float,
    ) -> None:
        self.config, self.method, self.solver_for = config, method, solver_for
        self.state, self.post, self.folder = state, post, folder
        self.journal = Journal(config, folder, started)
        self.roster = Roster(config.deploy.devices, post)
        self.reports: dict[int, Evaluation] = {}
        self.reported_round = -1
        self.refused = 0
        self.late_recorded = 0  # those that the records of the rounds have counted
        self.released = 0  # rounds whose answers somebody may have seen: what the accountant counts
        self.accountant = build_accountant(config, config.deploy.devices)

    def to_the_end(self) -> Result:
        """Run all rounds that are left."""
        self.roster.gather(self.config.deploy.join_seconds)
        self.population = self.roster.population()
        check_sampling(self.config.devices.sampling, self.config.devices.per_round, self.population.devices)
        if not self._went_back():
            self._measure({"solve_seconds": 0.0}, mu.Signals(None))
            self._save()
        ended = "finished"
        while self.state.round < self.config.rounds:
            record, signals = self._run_round()
            self._measure(record, signals)
            self.journal.round(record)
            reason = self.journal.reason_to_stop()
            if reason or self.state.round % self.config.checkpoint.every == 0:
                self._save()
            if reason:
                ended = reason
                break
        return self._finish(ended)

    def _run_round(self) -> tuple[dict[str, Any], mu.Signals]:
        """Take one round t -> t + 1, as often as it needs, and return its record and what mu may learn from it."""
        clock = time.perf_counter()
        state, deploy = self.state, self.config.deploy
        plan = plan_round(self.config, self.population, self.method, state.round + 1)
        self.roster.meet(deploy.grace)
        repeated: list[dict[str, str]] = []
        while True:
            self._count_release()
            collected = self._collect(plan)
            if len(collected.work) >= min(deploy.min_replies, int(plan.kept.sum())):
                break
            repeated.append({str(device): problem for device, problem in collected.problems.items()})
            _LOG.warning("round %d has %d usable replies and is repeated", plan.round, len(collected.work))
            if len(repeated) > deploy.repeats:
                self._save()
                raise RunError(
                    f"round {plan.round} must have {deploy.min_replies} usable replies (`deploy.min_replies`); it had "
                    f"fewer {len(repeated)} times: {repeated[-1]}"
                )
        masses = self.population.masses
        merged = merge(self.config, self.method, self.solver_for, state, plan, masses, collected.work)
        used_mu = self.method.subproblem_mu(state.controller.mu)
        state.params, state.server, state.round = merged.params, merged.server, plan.round
        state.devices |= merged.remembered
        record = {
            "round": plan.round,
            "solve_seconds": time.perf_counter() - clock,
            **plan.record(),
            **merged.record(),
            **collected.record(plan.cohort.devices.tolist(), gamma=self.config.measure.gamma),
            "mu": used_mu,
            "late": self.post.late - self.late_recorded,
            **({"repeated": repeated} if repeated else {}),
        }
        self.late_recorded = self.post.late
        return record, merged.signals

    def _count_release(self) -> None:
        """Count a round before it is sent out, on disk: one that is taken again after a crash counts both times."""
        self.released += 1
        if self.accountant is not None:
            record_release(self.folder.path, self.released)

    def _collect(self, plan: RoundPlan) -> Collected:
        """Ask the devices of a round, and sort their answers into work and problems."""
        deploy, anchor = self.config.deploy, flatten_names(self.state.params)
        asked = {
            int(device): int(budget)
            for device, budget, keep in zip(plan.cohort.devices, plan.work.budget, plan.kept, strict=True)
            if keep
        }
        linear = linear_terms(self.method, self.state, list(asked))
        used_mu = self.method.subproblem_mu(self.state.controller.mu)
        messages = {
            self.roster.node(device): Instruction(
                device, anchor, linear[device], plan.round, used_mu, budget, deploy.deadline
            ).to_records()
            for device, budget in asked.items()
        }
        wait = deploy.deadline + deploy.grace if deploy.deadline else 0.0
        answers = self.post.ask(messages, MessageType.TRAIN, seconds=wait, group=str(plan.round))
        by_device = {device: answers[self.roster.node(device)] for device in asked}
        collected = sorted_out(by_device, asked, anchor, deploy.max_norm)
        self.refused += len(collected.refused)
        for device, reason in collected.refused.items():
            _LOG.warning("round %d: the reply of device %d is refused: %s", plan.round, device, reason)
        return collected

    def _measure(self, record: dict[str, Any], signals: mu.Signals) -> None:
        """Have the devices measure the model if its round is a measured one; let mu and the outcome see the loss."""
        state, clock = self.state, time.perf_counter()
        used_mu = record.get("mu", self.method.subproblem_mu(state.controller.mu))
        measured = is_measured(state.round, self.config)
        if measured:
            self._ask_for_reports()
            measured = bool(self.reports)  # that nobody was reached says nothing of the model
        measures = pooled(self.reports, gradient=self.config.measure.dissimilarity)
        state.controller = state.controller.after(replace(signals, loss=measures.train_loss if measured else None))
        if not measured:
            return
        row = {
            "round": state.round,
            **finite(measures, self.config.measure.dissimilarity),
            **gamma_summary(record.get("gamma")),
            **(self.accountant.record(self.released) if self.accountant else {}),
            "mu": used_mu,
            "seconds": self.journal.seconds,
            "solve_seconds": record["solve_seconds"],
            "measure_seconds": time.perf_counter() - clock,
            "measured_devices": len(self.reports),
        }
        self.journal.metrics(row)

    def _ask_for_reports(self) -> None:
        deploy, params = self.config.deploy, flatten_names(self.state.params)
        question = Model(params).to_records()
        nodes = {self.roster.node(device): device for device in self.roster.devices}
        wait = deploy.deadline + deploy.grace if deploy.deadline else 0.0
        answers = self.post.ask(
            dict.fromkeys(nodes, question), MessageType.EVALUATE, seconds=wait, group=str(self.state.round)
        )
        self.reports, self.reported_round = {}, self.state.round
        for node, answer in answers.items():
            device, problem = nodes[node], answer.problem
            if answer.records is not None:
                problem = self._take_report(device, answer.records, params)
            if problem:
                _LOG.warning("round %d: device %d is not measured: %s", self.state.round, device, problem)

    def _take_report(self, device: int, records: Any, params: Named) -> str | None:
        try:
            report = Evaluation.from_records(records)
        except WrongMessageError as error:
            return str(error)
        said = self.roster.samples(device)
        problem = reason_to_ignore(report, said, params, gradient=self.config.measure.dissimilarity)
        if problem is None:
            self.reports[device] = report
        return problem

    def _save(self) -> None:
        more = {"late": self.post.late, "refused": self.refused}
        self.journal.save(self.state, self.state.devices, more)

    def _went_back(self) -> bool:
        """Go back to the folder's checkpoint, if there is one."""
        saved = self.journal.go_back(self.state, self.method)
        if saved is None:
            return False
        self.post.late = self.late_recorded = saved["late"]
        self.refused = saved["refused"]
        if self.accountant is not None:
            self.released = released_rounds(self.folder.path, self.state.round)
        return True

    def _finish(self, ended: str) -> Result:
        if self.reported_round != self.state.round:
            self._ask_for_reports()
        spent = self.accountant and {**self.accountant.record(self.released), "delta": self.accountant.delta}
        summary = {
            **self.journal.summary(ended, self.state.round),
            **({"privacy": spent} if spent else {}),
            "late_replies": self.post.late,
            "refused_replies": self.refused,
            "turned_away": self.roster.turned_away,
            "compile_seconds": 0.0,  # the devices compile, each for itself
            "workers": self.population.devices,
            "versions": {"fedprox": __version__, "flwr": flwr.__version__, "numpy": np.__version__},
        }
        self._save()
        params, history, devices = self.state.params, self.journal.history, self.journal.devices
        if (trace := trace_rows(devices, self.population.devices)) is not None:
            write_atomically(self.folder.path / "trace.jsonl", "".join(map(json_line, trace)).encode())
        self.folder.finish(flatten_names(params), evaluation_rows(self.reports, self.roster.devices), summary)
        return Result(history, devices, params, summary)
