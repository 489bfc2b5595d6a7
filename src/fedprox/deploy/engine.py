"""Flower as an engine of the loop: the devices of a round are real ones, on other machines.

A device solves a subproblem h_k (Equation 2 with a linear term and an anchor) and sends back its iterate w_k, whatever
the method. The method itself works on the server (`remote_work`): so it needs nothing on a device, and what it
remembers for a device stays in the server's checkpoint. For a method that needs gradients at w^t (FedDANE) the devices
are asked for them first.

Every reply is checked before it is merged; who did not reply, or not in time, is left out, and the weights follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import flwr
import jax
import numpy as np
from flwr.app import MessageType

from fedprox import __version__
from fedprox.config import Config
from fedprox.core.trees import Tree, difference, flatten_names, overlay_names, quiet, scale, squared_distance
from fedprox.deploy.message_exchange import NodeAnswer, Post
from fedprox.deploy.messages import Gradient, Instruction, Model, Named, PersonalVersion, Work, attempt
from fedprox.deploy.personal_versions import PersonalVersions
from fedprox.deploy.release_count import Releases
from fedprox.deploy.remote_work import Question, RemoteWork
from fedprox.deploy.reply_checks import wrong_arrays
from fedprox.deploy.roster import Roster
from fedprox.deploy.round_replies import Collected
from fedprox.engines import Broadcast, Engine, RoundOutcome, RoundRequest, Task
from fedprox.methods import Method, Reply
from fedprox.methods.merging import ReplySums, RoundSum
from fedprox.methods.parameter_roles import ParameterRoles
from fedprox.methods.traffic import count_bytes
from fedprox.privacy import build_mechanism, clip
from fedprox.solvers import Solver
from fedprox.solvers.schedules import build_schedule

__all__ = ["GRADIENT", "FlowerEngine"]

GRADIENT = f"{MessageType.QUERY}.gradient"
"""The kind of message that asks a device for grad F_k(w^t)."""

_LOG = logging.getLogger("fedprox.deploy")


class FlowerEngine(Engine):
    """Has real devices do the work of a round.

    Args:
      releases: the count of rounds sent out, for private runs.
      roles: which parameters are sent; all, unless `[personal]` or the model says otherwise.
      personal: the versions of the devices' personal parameters, where there are such.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        solver_for: Callable[[int], Solver],
        roster: Roster,
        post: Post,
        releases: Releases | None = None,
        roles: ParameterRoles | None = None,
        personal: PersonalVersions | None = None,
    ) -> None:
        self._config, self._method, self._solver_for = config, method, solver_for
        self._roster, self._post, self._releases = roster, post, releases
        self._mechanism = build_mechanism(config)
        self._roles, self._personal = roles or ParameterRoles(), personal
        self._gradients = _Gradients(self._roles)
        self._rate = build_schedule(config.solver, config.rounds)
        self._refused = 0
        self._late_recorded = 0  # those that the records of the rounds have counted

    @property
    def workers(self) -> int:
        """The number of devices."""
        return len(self._roster.devices)

    def compile(self, params: Tree) -> None:
        """Do nothing: the devices compile, each for itself."""

    def mean_gradient(self, tasks: Sequence[Task | None], params: Tree) -> Tree:
        """Return the mean of grad F_k(params) over those of the tasks that answer, with their weights."""
        asked = [task for task in tasks if task is not None]
        self._ask_for_gradients([task.device for task in asked], params)
        found = self._gradients.found
        answered = sum(task.weight for task in asked if task.device in found)
        missing = any(task.device not in found for task in asked)
        total = RoundSum(len(tasks))
        for position, task in enumerate(tasks):
            if task is not None and task.device in found:
                share = task.weight / answered if missing else task.weight
                total.add(position, scale(found[task.device], share))
        return total.result()

    @quiet
    def solve(self, request: RoundRequest) -> RoundOutcome:
        """Ask the devices of a round, wait until the deadline, and make replies of what can be used."""
        broadcast, deploy = request.broadcast, self._config.deploy
        self._post.group = str(broadcast.round)
        self._roster.meet(deploy.grace)
        if self._releases is not None:
            self._releases.add()
        asked = [task for task in request.tasks if task is not None]
        collected = Collected()
        replies = self._work(asked, broadcast, collected)
        outcome = self._outcome(request, collected)
        if len(collected.work) < min(deploy.min_replies, len(asked)):
            _LOG.warning("round %d has %d usable replies and is repeated", broadcast.round, len(collected.work))
            rule = f"round {broadcast.round} must have {deploy.min_replies} usable replies (`deploy.min_replies`)"
            return replace(outcome, shortfall=rule)
        averaged, summed = self._merge(request, outcome, collected.work, replies)
        return replace(outcome, averaged=averaged, summed=summed)

    def values(self) -> dict[str, Any]:
        """Return the counts of late and refused replies."""
        return {"late": self._post.late, "refused": self._refused, **self._versions()}

    def _versions(self) -> dict[str, Any]:
        return {} if self._personal is None else {"personal": self._personal.values()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back the counts."""
        self._post.late = self._late_recorded = values["late"]
        self._refused = values["refused"]
        if self._personal is not None:
            self._personal.restore(values["personal"])

    def summary(self) -> dict[str, Any]:
        """Return what went wrong over the run, in numbers."""
        return {
            "late_replies": self._post.late,
            "refused_replies": self._refused,
            "turned_away": self._roster.turned_away,
            "versions": {"fedprox": __version__, "flwr": flwr.__version__, "numpy": np.__version__},
        }

    def _work(self, asked: Sequence[Task], broadcast: Broadcast, collected: Collected) -> dict[int, Reply]:
        """Have the method work with all devices, in as many exchanges as it poses subproblems; return the replies."""
        if self._method.needs_gradients:
            unasked = [task.device for task in asked if task.device not in self._gradients.asked]
            self._ask_for_gradients(unasked, None)
            collected.problems.update(
                {task.device: why for task in asked if (why := self._gradients.problems.get(task.device))}
            )
        at_work = {task.device: self._start(task, broadcast) for task in asked if task.device not in collected.problems}
        replies: dict[int, Reply] = {}
        while at_work:
            questions: dict[int, Question] = {}
            for device, remote in at_work.items():
                step = remote.advance(self._method, broadcast, self._rate(broadcast.round))
                if isinstance(step, Question):
                    questions[device] = step
                else:
                    replies[device], collected.work[device] = step, remote.work()
            answered = self._exchange(questions, broadcast, collected)
            at_work = {device: at_work[device] for device in answered}
            for device, work in answered.items():
                at_work[device].answers.append((overlay_names(broadcast.params, work.params), work))
        return replies

    def _start(self, task: Task, broadcast: Broadcast) -> RemoteWork:
        state = self._method.start_device(broadcast.params) if task.state is None else task.state
        return RemoteWork(task, state, self._gradients.found.get(task.device), self._solver_for(task.device))

    def _exchange(
        self, questions: Mapping[int, Question], broadcast: Broadcast, collected: Collected
    ) -> dict[int, Work]:
        """Send devices their subproblems, and return the work that can be used."""
        anchor, deploy = self._sent(broadcast.params), self._config.deploy
        messages = {
            device: Instruction(
                device,
                anchor,
                None if posed.linear is None else self._sent(posed.linear),
                broadcast.round,
                posed.mu,
                budget,
                deploy.deadline,
                None if posed.anchor is None else self._sent(posed.anchor),
                None if posed.start is None else self._sent(posed.start),
                self._version(device, broadcast.round, is_first=device not in collected.bytes),
            )
            for device, (posed, budget) in questions.items()
        }
        answers = self._ask({device: one.to_records() for device, one in messages.items()}, MessageType.TRAIN)
        budgets = {device: question.budget for device, question in questions.items()}
        work = collected.sort(answers, budgets, anchor, deploy.max_norm)
        refused = {device: collected.refused[device] for device in questions if device in collected.refused}
        self._refused += len(refused)
        for device, reason in refused.items():
            _LOG.warning("round %d: the reply of device %d is refused: %s", broadcast.round, device, reason)
        for device, message in messages.items():
            down = count_bytes((message.params, message.linear, message.anchor, message.start))
            up = count_bytes(work[device].params) if device in work else 0
            collected.bytes[device] = collected.bytes.get(device, 0) + down + up
        return work

    def _sent(self, tree: Tree) -> Named:
        """Return by name what is sent of a tree."""
        return flatten_names(self._roles.exchanged(tree))

    def _version(self, device: int, round: int, *, is_first: bool) -> PersonalVersion | None:
        """Return the personal parameters of a device in a round; the first of its subproblems trains them."""
        if self._personal is None:
            return None
        return self._personal.to_train(device, round) if is_first else self._personal.to_read(device)

    def _ask(self, records: Mapping[int, Any], kind: str) -> dict[int, NodeAnswer]:
        """Send each device its message and return its answer."""
        deploy = self._config.deploy
        nodes = {device: self._roster.node(device) for device in records}
        wait = deploy.deadline + deploy.grace if deploy.deadline else 0.0
        answers = self._post.ask({nodes[device]: one for device, one in records.items()}, kind, seconds=wait)
        return {device: answers[node] for device, node in nodes.items()}

    def _outcome(self, request: RoundRequest, collected: Collected) -> RoundOutcome:
        """Return what came of a round, before anything is merged."""
        devices = [None if task is None else task.device for task in request.tasks]
        work = [None if device is None else collected.work.get(device) for device in devices]
        budgets = [0 if task is None else task.budget for task in request.tasks]
        late, self._late_recorded = self._post.late - self._late_recorded, self._post.late
        return replace(
            RoundOutcome.empty(request),
            steps=[one.steps if one else 0 for one in work],
            replied=np.array([one is not None for one in work], bool),
            cut_off=np.array(
                [
                    one is not None and one.stopped_by_time and one.steps < budget
                    for one, budget in zip(work, budgets, strict=True)
                ],
                bool,
            ),
            gammas=[None if one is None else one.gamma for one in work] if request.gammas else None,
            bytes=[0 if device is None else collected.bytes.get(device, 0) for device in devices],
            columns={**collected.record(devices), "late": late},
            problems=collected.problems,
        )

    def _merge(
        self, request: RoundRequest, outcome: RoundOutcome, work: Mapping[int, Work], replies: Mapping[int, Reply]
    ) -> tuple[Tree, Tree]:
        """Add up the replies of those who are kept, or keep each; under privacy a reply is an update."""
        broadcast = request.broadcast
        shares = request.settle(outcome.replied, outcome.cut_off)
        sums = ReplySums(len(request.tasks))
        for position, task in enumerate(request.tasks):
            if task is None or not shares.kept[position]:
                continue
            own = task._replace(weight=float(shares.weights[position]))
            reply, done = self._private(replies[task.device], self._method.shared(broadcast.params)), work[task.device]
            outcome.states[position] = reply.state
            if self._personal is not None:
                self._personal.merge(task.device)
            if broadcast.wants_drift and not self._hides_drift:
                params = self._method.shared(overlay_names(broadcast.params, done.params))
                outcome.drift2[position] = squared_distance(params, self._method.shared(broadcast.params))
            if outcome.replies is not None:
                outcome.replies[position] = own.received(reply, done.steps)
            else:
                sums.add(position, *own.weighted(reply))
        return sums.result()

    def _private(self, reply: Reply, anchor: Tree) -> Reply:
        """Return under privacy the update in place of the model, clipped here unless the device has done it."""
        if self._mechanism is None:
            return reply
        update = difference(reply.averaged, anchor)
        return reply._replace(averaged=update if self._mechanism.on_devices else clip(update, self._mechanism.clip))

    @property
    def _hides_drift(self) -> bool:
        """Whether what a device sends has its own noise, so that its length says nothing."""
        return self._mechanism is not None and self._mechanism.on_devices and self._mechanism.share > 0

    def _ask_for_gradients(self, devices: Sequence[int], params: Tree | None) -> None:
        """Ask devices for their gradient at `params`; None: at the model that others were asked about."""
        if params is not None:
            self._gradients = _Gradients(self._roles, params)
        gradients = self._gradients
        if not devices:
            return
        question = Model(gradients.sent).to_records()
        for device, answer in self._ask(dict.fromkeys(devices, question), GRADIENT).items():
            problem = answer.problem
            if answer.records is not None:
                problem = gradients.take(device, answer.records)
            if problem:
                gradients.problems[device] = f"no gradient: {problem}"


class _Gradients:
    """The gradients of devices at one model."""

    def __init__(self, roles: ParameterRoles, at: Tree = None) -> None:
        self.at, self.sent = at, flatten_names(roles.exchanged(at))
        self.found: dict[int, Tree] = {}
        self.problems: dict[int, str] = {}

    @property
    def asked(self) -> set[int]:
        return {*self.found, *self.problems}

    def take(self, device: int, records: Any) -> str | None:
        """Keep a gradient, or return why it cannot be used."""
        sent, reason = attempt(lambda: Gradient.from_records(records, self.sent))
        if sent is not None:
            reason = wrong_arrays(sent.params, self.sent)
        if sent is None or reason is not None:
            return f"refused: {reason}"
        self.found[device] = overlay_names(jax.tree.map(np.zeros_like, self.at), sent.params)
        return None
