"""The arrival server: the model moves as replies of real devices arrive, whenever that is.

*buffered* and *asynchronous* move the model with every `systems.buffer` replies, or with each, by the rules of the
event server (`event_server`). The place of a device that has replied is free at once, so that no device waits for
another.

With `deploy.late` = "merge" a *synchronous* server asks the devices of a round and waits for them until the deadline.
A reply that arrives later is merged in the round of its arrival, as an update,

    w^{t+1} = w^t + sum_k weight_k (w_k - a_k),        weight_k in proportion to n_k (1 + s_k)^-staleness

with s_k = 0 for those in time: where none is late, these are the rounds of the synchronous server.

A device asked at version t draws what it would draw in round t + 1 of the synchronous server, and is asked at most once
per version. One that is offline, or still at work, is skipped for the next candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunError
from fedprox.core.trees import Tree, total
from fedprox.engines import Broadcast, RoundOutcome, RoundRequest, Shares, TaskList
from fedprox.methods.custom_checks import kept_devices
from fedprox.methods.merging import ReplySums
from fedprox.methods.mu import current_mu
from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.clock.availability import candidate_blocks, most_candidates
from fedprox.participation.clock.candidates import Candidates, FullWork
from fedprox.participation.sampling import Cohort, cap_weights, merge_weights
from fedprox.participation.stragglers import Workload
from fedprox.training.arrivals import Arrival, Arrivals, Assignment
from fedprox.training.merge_step import MergeStep
from fedprox.training.plan import RoundPlan, plan_round
from fedprox.training.run_parts import RunParts
from fedprox.training.servers.settled_round import SettledRound
from fedprox.training.state import GivenModel

__all__ = ["ArrivalServer"]

Ended = list[tuple[Assignment, Arrival]]
_THERE, _AWAY = 1.0, 0.0


class ArrivalServer:
    """Merges replies as they arrive; see the module."""

    def __init__(self, parts: RunParts, arrivals: Arrivals, merge_step: MergeStep, save: Callable[[], None]) -> None:
        self._parts, self._arrivals, self._merge_step, self._save = parts, arrivals, merge_step, save
        self._config, self._method, self._state = parts.config, parts.method, parts.state
        systems = parts.config.systems
        self._has_rounds = not systems.runs_on_events
        self._buffer = systems.buffer if systems.server == "buffered" else 1
        self._concurrency = min(systems.concurrency, parts.population.devices)
        self._under_way: dict[int, Assignment] = {}  # by their order
        self._overdue: set[int] = set()  # of these, those that no place is kept for
        self._asked = 0
        self._state.timeline = self

    def next_round(self) -> SettledRound:
        """Wait for replies until the model can move."""
        state, method = self._state, self._method
        centre, sent = method.centre(state.server, state.params), method.send(state.server, None)
        state.given[state.round] = GivenModel(centre, sent, method.subproblem_mu(current_mu(state.controller)))
        self._repeats = 0
        self._listed: dict[int, bool] = {}  # the devices asked for this version -> whether a usable reply is there
        self._begin_asking()
        ended: Ended = []
        while not self._is_due(ended):
            event = self._arrivals.next(self._under_way, self._choose)
            if isinstance(event, Assignment):
                self._under_way[event.order] = event
                self._asked_here[event.order] = event.device
                self._listed.setdefault(event.device, False)
                self._asked = event.order + 1
            elif event is not None:
                self._end(event, ended)
            elif self._replies(ended) and not (self._has_rounds and self._listed):
                break
            elif self._asked_here:
                self._repeat(ended)
        if self._has_rounds:
            ended.sort(key=lambda each: each[0].order)
        plan = self._plan(ended)
        settled = SettledRound(plan, self._outcome(plan, ended))
        needed = {assignment.version for assignment in self._under_way.values()}
        for version in [version for version in state.given if version not in needed]:
            del state.given[version]
        return settled

    def resume(self) -> None:
        """Continue after the state, and the work in progress with it, was restored."""

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of work in progress, in plain JSON values."""
        rows = [list(assignment) for assignment in self._under_way.values()]
        overdue = sorted(self._overdue)
        return {"asked": self._asked, "under_way": rows, "overdue": overdue, **self._arrivals.values()}

    def restore(self, values: Mapping[str, Any], *, now: float, version: int) -> None:
        """Restore what `values` returned."""
        self._under_way = {row[0]: Assignment(*row) for row in values["under_way"]}
        self._asked, self._overdue = values["asked"], set(values["overdue"])
        self._arrivals.restore(values)

    def _end(self, arrival: Arrival, ended: Ended) -> None:
        """Record the outcome of an assignment."""
        order = arrival.order
        assignment = self._under_way.pop(order) if arrival.is_over else self._under_way[order]
        was_overdue = order in self._overdue
        if arrival.is_over:
            self._overdue.discard(order)
            self._candidates.has_ended(assignment.device)
        else:
            self._overdue.add(order)
        if assignment.version == self._state.round and self._replies([(assignment, arrival)]):
            self._listed[assignment.device] = True
        if arrival.reply is not None or not was_overdue:  # that it is overdue has been recorded
            ended.append((assignment, arrival))

    def _is_due(self, ended: Ended) -> bool:
        """Return whether the model can move."""
        replies = self._replies(ended)
        if not self._has_rounds:
            return replies >= self._buffer
        waiting = [order for order in self._asked_here if order in self._under_way and order not in self._overdue]
        if waiting or not self._listed:
            return False
        if replies >= min(self._config.deploy.min_replies, len(self._listed)):
            return True
        if self._asked_here:
            self._repeat(ended)
        return False

    def _repeat(self, ended: Ended) -> None:
        """Ask the devices of the round without a usable reply again, unless that was done often enough."""
        deploy, round = self._config.deploy, self._state.round + 1
        self._repeats += 1
        if self._repeats > deploy.repeats:
            problems = {str(each.device): arrival.problem for each, arrival in ended if arrival.problem}
            del self._state.given[self._state.round]
            self._save()
            raise RunError(
                f"round {round} must have {deploy.min_replies} usable replies (`deploy.min_replies`); it had fewer "
                f"{self._repeats} times: {problems}"
            )
        self._begin_asking()

    def _begin_asking(self) -> None:
        self._asked_here: dict[int, int] = {}  # order -> device, of those asked for the version since the last try
        self._candidates = self._list_candidates()

    def _replies(self, ended: Ended) -> int:
        """Return how many replies the model can move with."""
        replied = [(each, arrival) for each, arrival in ended if arrival.reply is not None]
        if not replied:
            return 0
        kept = kept_devices(self._method, _workload(replied))
        return sum(each.draws for (each, _), is_kept in zip(replied, kept.tolist(), strict=True) if is_kept)

    # --- which devices to ask

    def _choose(self, here: Collection[int]) -> list[Assignment]:
        """Return the devices to ask now, of those that can be asked."""
        self._here = here
        return self._choose_round() if self._has_rounds else self._fill_places()

    def _choose_round(self) -> list[Assignment]:
        if self._asked_here:
            return []
        choices = self._parts.own_choices
        round = self._state.round + 1
        plan = plan_round(self._config, self._parts.population, self._method, round, choices=choices)
        rows = zip(
            plan.cohort.devices.tolist(),
            plan.cohort.samples.tolist(),
            plan.cohort.draws.tolist(),
            plan.work.budget.tolist(),
            plan.work.epochs.tolist(),
            plan.kept.tolist(),
            strict=True,
        )
        chosen = [row[:-1] for row in rows if row[-1] and row[0] in self._here and not self._listed.get(row[0], False)]
        return [Assignment(self._asked + place, round - 1, *row) for place, row in enumerate(chosen)]

    def _fill_places(self) -> list[Assignment]:
        """Return devices for the places that are free."""
        at_work = {assignment.device for assignment in self._under_way.values()}
        free = self._concurrency - sum(
            each.draws for order, each in self._under_way.items() if order not in self._overdue
        )
        asked: list[Assignment] = []
        self._candidates.look_again()
        while free > 0 and (found := self._candidates.next(0.0, at_work)) is not None:
            device, samples, draws, work = found[0]
            if device in self._asked_here.values():  # before this server was started again
                continue
            order = self._asked + len(asked)
            epochs = work.steps / work.per_epoch
            asked.append(Assignment(order, self._state.round, device, samples, draws, work.steps, epochs))
            at_work.add(device)
            free -= draws
        return asked

    def _list_candidates(self) -> Candidates:
        """Return the devices that may receive the current version, in the order of its round."""
        chosen, offsets = self._config.devices, self._parts.population.train.offsets
        most = most_candidates(max(chosen.per_round, self._concurrency))
        blocks = candidate_blocks(
            chosen.sampling, chosen.per_round, offsets, self._config.seed, self._state.round + 1, most
        )
        return Candidates(blocks, offsets, self._full_work, self._seconds_left, self._stays, at_once=1)

    def _full_work(self, cohort: Cohort) -> list[FullWork]:
        per_epoch = np.asarray(steps_per_epoch(cohort.samples, self._config.solver.batch_size)).tolist()
        epochs = self._config.solver.epochs
        return [FullWork("", 0.0, each * epochs, each, 0.0, True) for each in per_epoch]

    def _seconds_left(self, devices: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        return np.array([self._stays(device, now) for device in devices.tolist()])

    def _stays(self, device: int, now: float) -> float:
        return _THERE if device in self._here else _AWAY

    # --- outcomes

    def _plan(self, ended: Ended) -> RoundPlan:
        systems = self._config.systems
        assigned = [assignment for assignment, _ in ended]
        cohort = Cohort(
            np.array([each.device for each in assigned], np.int64),
            np.array([each.samples for each in assigned], np.int64),
            np.array([each.draws for each in assigned], np.int64),
        )
        work = _workload(ended)
        replied = np.array([arrival.reply is not None for _, arrival in ended], bool)
        kept = kept_devices(self._method, work) & replied
        factors = np.power(1.0 + self._staleness(ended), -systems.staleness, dtype=np.float64)
        by_draws = self._parts.own_choices.weighs_draws(self._config)
        weights = merge_weights(cohort, kept, by_draws=by_draws, factors=factors)
        if self._parts.max_weight < 1:
            weights = cap_weights(weights, self._parts.max_weight)
        mixing = 1.0
        if systems.server == "asynchronous" and kept.any():
            mixing = systems.mixing * float(factors[kept][0])
        return RoundPlan(
            round=self._state.round + 1,
            cohort=cohort,
            work=work,
            failed=np.zeros(len(ended), bool),
            kept=kept,
            weights=weights,
            weighs_draws=by_draws,
            max_weight=self._parts.max_weight,
            mixing=mixing,
        )

    def _staleness(self, ended: Ended) -> NDArray[np.int64]:
        return self._state.round - np.array([assignment.version for assignment, _ in ended], np.int64)

    def _outcome(self, plan: RoundPlan, ended: Ended) -> RoundOutcome:
        """Return the outcome of the replies that are merged, as replies to the current model."""
        state = self._state
        given = state.given[state.round]
        masses = np.minimum(plan.cohort.samples / len(self._parts.population.train), plan.max_weight)
        tasks = TaskList(plan.kept, plan.cohort.devices, plan.work.budget, plan.weights, masses, {})
        broadcast = Broadcast(plan.round, given.params, given.sent, given.mu, self._merge_step.wants_drift)
        request = RoundRequest(tasks, broadcast, _no_shares, self._config.measure.gamma)
        sums = ReplySums(len(ended))
        shifts: dict[int, Tree] = {}
        for position, (assignment, arrival) in enumerate(ended):
            if arrival.reply is None or not plan.kept[position]:
                continue
            reply, version = arrival.reply, assignment.version
            if version != state.round:
                if version not in shifts:
                    shifts[version] = self._method.shift(state.given[version].params, given.params)
                reply = reply._replace(averaged=total(reply.averaged, shifts[version]))
            sums.add(position, *tasks.task(position).weighted(reply))
        averaged, summed = sums.result()
        arrivals = [arrival for _, arrival in ended]
        return replace(
            RoundOutcome.empty(request),
            averaged=averaged,
            summed=summed,
            steps=[each.steps for each in arrivals],
            drift2=[each.drift2 for each in arrivals],
            replied=np.array([each.reply is not None for each in arrivals], bool),
            cut_off=np.array([each.was_cut_off for each in arrivals], bool),
            gammas=[each.gamma for each in arrivals] if request.gammas else None,
            bytes=[each.bytes for each in arrivals],
            columns=self._columns(ended),
        )

    def _columns(self, ended: Ended) -> dict[str, Any]:
        names = {name: None for _, arrival in ended for name in arrival.columns}
        return {
            "version": [assignment.version for assignment, _ in ended],
            "staleness": self._staleness(ended).tolist(),
            "failed": [arrival.reply is None for _, arrival in ended],
            "problem": [arrival.problem for _, arrival in ended],
            **{name: [arrival.columns.get(name) for _, arrival in ended] for name in names},
            "late": self._arrivals.take_late(),
        }


def _workload(ended: Sequence[tuple[Assignment, Arrival]]) -> Workload:
    return Workload(
        np.array([arrival.was_cut_off for _, arrival in ended], bool),
        np.array([assignment.epochs for assignment, _ in ended], np.float64),
        np.array([assignment.budget for assignment, _ in ended], np.int64),
    )


def _no_shares(*_: Any) -> Shares:
    raise RuntimeError("every reply that arrives is merged")
