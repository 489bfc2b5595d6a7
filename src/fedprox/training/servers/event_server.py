"""The event server: the model moves as replies arrive on the simulated clock.

*buffered* (FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022): every
`systems.buffer` replies make a version. With a_k the model that device k was given, s_k how many versions were made
since, and w^t the current one,

    w^{t+1} = w^t + sum_k weight_k (w_k - a_k),        weight_k in proportion to n_k (1 + s_k)^-staleness

over the buffer, with weights that sum to 1. A reply is merged as w_k + (w^t - a_k), which is w_k where nothing moved
meanwhile, so that methods and their servers merge it as one to w^t.

*asynchronous* (FedAsync: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019): every reply makes a
version,

    w^{t+1} = w^t + mixing (1 + s_k)^-staleness (w_k - a_k)

(The source mixes models, w^t + alpha (w_k - w^t), which takes w^t back towards a_k. Here the device's update is added,
as with a buffer; both are the same where nothing moved meanwhile.) A method with a server step of its own takes it for
the reply, and the model goes that part of the way.

The proximal term of a device is anchored at a_k, the model that it was given.

Solving is lazy. The time line determines which device replies when; a reply is computed when it is merged, together
with later ones, whatever version their devices were given, so that the engine has many devices at a time. No bit
depends on that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from fedprox.core.trees import Tree, total
from fedprox.engines import Broadcast, Engine, RoundOutcome, RoundRequest, Shares, TaskList
from fedprox.methods.custom_checks import kept_devices
from fedprox.methods.merging import ReplySums, StackedReplies
from fedprox.methods.mu import current_mu
from fedprox.methods.solver_choice import SharedSolver
from fedprox.methods.traffic import count_bytes
from fedprox.participation.clock import Clock
from fedprox.participation.clock.event_queue import Job
from fedprox.participation.clock.event_times import EventTimes
from fedprox.participation.clock.timeline import Instant, Timeline
from fedprox.participation.sampling import Cohort, merge_weights
from fedprox.participation.stragglers import Workload
from fedprox.training.merge_step import MergeStep
from fedprox.training.plan import RoundPlan
from fedprox.training.run_parts import RunParts
from fedprox.training.servers.held_replies import HeldReplies, HeldReply
from fedprox.training.servers.settled_round import SettledRound
from fedprox.training.state import GivenModel

__all__ = ["EventServer"]

_STACKED = 1 << 26  # bytes of replies that are added up as arrays; more of them are added up one by one


class EventServer:
    """Merges replies as they arrive; see the module."""

    def __init__(self, parts: RunParts, clock: Clock, engine: Engine, merge_step: MergeStep) -> None:
        self._parts, self._engine, self._merge_step = parts, engine, merge_step
        self._config, self._method, self._state = parts.config, parts.method, parts.state
        systems = parts.config.systems
        self._model_bytes = count_bytes(parts.state.params)
        self._is_buffered = systems.server == "buffered"
        self._users: Counter[int] = Counter()  # how many devices are at work on each version
        self._gamma_seconds = 0.0  # that measuring gammas took since the last version
        self._held = HeldReplies(self._solve, most=_most_held(parts, engine))
        self._timeline = Timeline(
            clock,
            parts.population.train.offsets,
            partial(kept_devices, parts.method),
            concurrency=min(systems.concurrency, parts.population.devices),
            buffer=systems.buffer if self._is_buffered else 1,
            steps_done=None if self._steps_are_known() else self._steps_done,
        )
        self._state.timeline = self._timeline

    def next_round(self) -> SettledRound:
        """Follow the devices until the model moves."""
        state, method = self._state, self._method
        centre, sent = method.centre(state.server, state.params), method.send(state.server, None)
        state.given[state.round] = GivenModel(centre, sent, method.subproblem_mu(current_mu(state.controller)))
        instant = self._timeline.next_merge()
        self._held.add(instant.asked)
        plan = self._plan(instant)
        held = self._held.take(instant.ended)
        outcome = self._outcome(plan, instant, held)
        self._users.update(job.version for job in instant.asked)
        self._users.subtract(job.version for job in instant.ended)
        for version in {state.round, *(job.version for job in instant.ended)}:
            if self._users[version] == 0:
                del self._users[version], state.given[version]
        return SettledRound(plan, outcome)

    def resume(self) -> None:
        """Continue with the devices that were at work; their replies are computed again."""
        at_work = list(self._timeline.queue)
        self._held.add(at_work)
        self._users = Counter(job.version for job in at_work)

    def _plan(self, instant: Instant) -> RoundPlan:
        jobs, systems = instant.ended, self._config.systems
        cohort = Cohort(
            np.array([job.device for job in jobs], np.int64),
            np.array([job.samples for job in jobs], np.int64),
            np.array([job.draws for job in jobs], np.int64),
        )
        work = Workload(
            np.array([job.straggler for job in jobs], bool),
            np.array([job.epochs for job in jobs], np.float64),
            np.array([job.budget for job in jobs], np.int64),
        )
        kept = np.array([job.replies for job in jobs], bool)
        staleness = self._state.round - np.array([job.version for job in jobs], np.int64)
        factors = np.power(1.0 + staleness, -systems.staleness, dtype=np.float64)
        by_draws = self._parts.own_choices.weighs_draws(self._config)
        weights = merge_weights(cohort, kept, by_draws=by_draws, factors=factors)
        mixing = 1.0 if self._is_buffered or not kept.any() else systems.mixing * float(factors[kept][0])
        failed = np.array([job.failed for job in jobs], bool)
        timed = EventTimes(instant, staleness, self._timeline.deadline, None if self._is_buffered else mixing)
        round = self._state.round + 1
        return RoundPlan(round, cohort, work, failed, kept, weights, None, timed, by_draws, mixing=mixing)

    def _outcome(self, plan: RoundPlan, instant: Instant, held: Sequence[HeldReply | None]) -> RoundOutcome:
        """Return the outcome of the replies that are merged, as replies to the current model."""
        masses = plan.cohort.samples / len(self._parts.population.train)
        tasks = TaskList(plan.kept, plan.cohort.devices, plan.work.budget, plan.weights, masses, {})
        wants = self._config.measure.gamma, self._merge_step.needs_every_reply
        outcome = RoundOutcome.empty(RoundRequest(tasks, self._broadcast(self._state.round), _no_shares, *wants))
        replies = [(position, each) for position, each in enumerate(held) if each is not None]
        for position, each in replies:
            outcome.steps[position], outcome.drift2[position] = each.steps, each.drift2
            if outcome.gammas is not None:
                outcome.gammas[position] = each.gamma
        outcome, self._gamma_seconds = replace(outcome, gamma_seconds=self._gamma_seconds), 0.0
        versions = [job.version for job in instant.ended]
        shifts = self._shifts({versions[position] for position, _ in replies})
        if outcome.replies is None and replies and len(replies) * self._model_bytes <= _STACKED:
            averaged, summed = _stacked(replies, versions, shifts, tasks)
            return replace(outcome, averaged=averaged, summed=summed)
        sums = ReplySums(len(held))
        for position, each in replies:
            reply, task = each.reply, tasks.task(position)
            if versions[position] in shifts:
                reply = reply._replace(averaged=total(reply.averaged, shifts[versions[position]]))
            if outcome.replies is not None:
                outcome.replies[position] = task.received(reply, each.steps)
            else:
                sums.add(position, *task.weighted(reply))
        averaged, summed = sums.result()
        return replace(outcome, averaged=averaged, summed=summed)

    def _shifts(self, versions: set[int]) -> dict[int, Tree]:
        """Return the correction that turns replies to earlier versions into replies to the current one."""
        state = self._state
        centre = self._method.centre(state.server, state.params)
        earlier = sorted(versions - {state.round})
        return {version: self._method.shift(state.given[version].params, centre) for version in earlier}

    def _broadcast(self, version: int) -> Broadcast:
        given = self._state.given[version]
        return Broadcast(version + 1, given.params, given.sent, given.mu, self._merge_step.wants_drift)

    def _solve(self, jobs: Sequence[Job]) -> list[HeldReply]:
        """Let devices work, sorted by the version that they were given."""
        by_version = [list(own) for _, own in groupby(jobs, key=lambda job: job.version)]
        outcomes = self._engine.solve_versions([self._request(own) for own in by_version])
        held: list[HeldReply] = []
        for own, outcome in zip(by_version, outcomes, strict=True):
            self._gamma_seconds += outcome.gamma_seconds
            gammas = outcome.gammas or [None] * len(own)
            columns = (outcome.replies or (), outcome.steps, outcome.drift2, gammas)
            for job, received, steps, drift2, gamma in zip(own, *columns, strict=True):
                if received is None:
                    raise RuntimeError(f"device {job.device} was asked at version {job.version} and gave no reply")
                held.append(HeldReply(received.reply, steps, drift2, gamma))
        return held

    def _request(self, jobs: Sequence[Job]) -> RoundRequest:
        """Return what devices that were given one version are to do."""
        devices = np.array([job.device for job in jobs], np.int64)
        self._parts.population.check(devices)
        count, budgets = len(jobs), np.array([job.budget for job in jobs], np.int64)
        tasks = TaskList(np.ones(count, bool), devices, budgets, np.ones(count), np.ones(count), {})
        wants_gammas = self._config.measure.gamma
        return RoundRequest(tasks, self._broadcast(jobs[0].version), _no_shares, gammas=wants_gammas, every_reply=True)

    def _steps_are_known(self) -> bool:
        """Return whether every device takes as many steps as its budget has."""
        chosen = self._parts.solver_for
        if self._config.solver.gamma > 0 or not self._method.spends_budget or not isinstance(chosen, SharedSolver):
            return False
        return bool(getattr(chosen.solver, "spends_budget", False))

    def _steps_done(self, jobs: Sequence[Job]) -> list[int]:
        self._held.add(jobs)
        return self._held.steps(jobs)


def _stacked(
    replies: Sequence[tuple[int, HeldReply]], versions: Sequence[int], shifts: Mapping[int, Tree], tasks: TaskList
) -> tuple[Tree, Tree]:
    """Return the two sums over replies, all at once."""
    positions = np.array([position for position, _ in replies], np.int64)
    averaged = StackedReplies([each.reply.averaged for _, each in replies], positions, len(tasks))
    summed = StackedReplies([each.reply.summed for _, each in replies], positions, len(tasks))
    own = np.array([versions[position] for position, _ in replies], np.int64)
    for version, shift in shifts.items():
        averaged.shift(np.flatnonzero(own == version), shift)
    return averaged.total(tasks.weights[positions]), summed.total(tasks.masses[positions])


def _most_held(parts: RunParts, engine: Engine) -> int:
    """Return how many replies to a version are computed at a time: as many as fit 64 MB, or two for each worker."""
    return max(2 * engine.workers, min(256, _STACKED // max(count_bytes(parts.state.params), 1)))


def _no_shares(*_: Any) -> Shares:
    raise RuntimeError("every reply that arrives is merged")
