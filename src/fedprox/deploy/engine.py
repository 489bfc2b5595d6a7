"""Flower as an engine of the loop: the devices of a round are real ones, on other machines.

A device solves a subproblem h_k (Equation 2 with a linear term and an anchor) and sends back its iterate w_k, whatever
the method. The method itself works on the server (`remote_work`): so it needs nothing on a device, and what it
remembers for a device stays in the server's checkpoint. For a method that needs gradients at w^t (FedDANE) the devices
are asked for them first.

Every reply is checked before it is merged; devices that did not reply in time are left out, and the weights adjusted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import flwr
import numpy as np
from flwr.app import MessageType

from fedprox import __version__
from fedprox.config import Config
from fedprox.core.trees import Tree, overlay_names, quiet
from fedprox.deploy.message_exchange import NodeAnswer, Post
from fedprox.deploy.messages import ModelQuery, PersonalVersion, WorkReport
from fedprox.deploy.norm_limits import NormLimits
from fedprox.deploy.personal_versions import PersonalVersions
from fedprox.deploy.release_count import Releases
from fedprox.deploy.remote_gradients import RemoteGradients
from fedprox.deploy.remote_work import GradientQuestion, Question, RemoteWork
from fedprox.deploy.reply_additions import Contribution, measure_additions
from fedprox.deploy.reply_checks import distance
from fedprox.deploy.reply_merge import Answered, ReplyMerge
from fedprox.deploy.roster import Roster
from fedprox.deploy.round_replies import Collected
from fedprox.deploy.solution_gradients import take_gradients
from fedprox.deploy.work_messages import WorkMessages, bytes_down
from fedprox.deploy.work_times import WorkTimes
from fedprox.engines import Broadcast, Engine, RoundOutcome, RoundRequest, Task
from fedprox.methods import Method
from fedprox.methods.parameter_roles import ParameterRoles
from fedprox.methods.traffic import count_bytes
from fedprox.privacy import build_mechanism
from fedprox.solvers import Solver
from fedprox.solvers.schedules import build_schedule

__all__ = ["GRADIENT", "FlowerEngine"]

GRADIENT = f"{MessageType.QUERY}.gradient"
"""The kind of message that asks a device for grad F_k(w^t)."""

_LOG = logging.getLogger("fedprox.deploy")


class FlowerEngine(Engine):
    """Lets real devices do the work of a round.

    Attributes:
      limits: how much a reply may add.
      messages: writes the messages that ask for work.

    Args:
      releases: the count of rounds sent out, for private runs.
      roles: which parameters are sent; all, unless `[personal]` or the model says otherwise.
      personal: the versions of the devices' personal parameters, where there are such.
      times: how long devices may work, which the measurer follows too.
      remembered: how many of the last rounds, or replies where they arrive one by one, the limits follow.
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
        times: WorkTimes | None = None,
        remembered: int = 5,
    ) -> None:
        self._config, self._method, self._solver_for = config, method, solver_for
        self._roster, self._post, self._releases = roster, post, releases
        self._mechanism = build_mechanism(config)
        self._roles, self._personal = roles or ParameterRoles(), personal
        self._gradients = RemoteGradients(self._roles)
        self._rate = build_schedule(config.solver, config.rounds)
        # With noise, which replies are merged must not depend on the updates of others; clipping bounds them instead.
        self.limits = NormLimits(0.0 if self._mechanism else config.deploy.max_norm, remembered)
        self._times = times or WorkTimes(config.deploy.deadline)
        self.messages = WorkMessages(config, solver_for, self._roles, self._times)
        self._merge = ReplyMerge(config, method, self._mechanism, personal, hides_drift=self.messages.hides_drift)
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
        return self._gradients.mean(tasks)

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
        norms = self._refuse_excess(request, collected, replies)
        outcome = self._outcome(request, collected)
        if len(collected.work) < min(deploy.min_replies, len(asked)):
            _LOG.warning("round %d has %d usable replies and is repeated", broadcast.round, len(collected.work))
            rule = f"round {broadcast.round} must have {deploy.min_replies} usable replies (`deploy.min_replies`)"
            return replace(outcome, shortfall=rule)
        self.limits.take_note(self._with_gradients(norms))
        averaged, summed = self._merge.add_up(request, outcome, collected.work, replies)
        return replace(outcome, averaged=averaged, summed=summed)

    def values(self) -> dict[str, Any]:
        """Return the counts of late and refused replies, and what the limits follow."""
        return {"late": self._post.late, "refused": self._refused, **self._followed(), **self._versions()}

    def _versions(self) -> dict[str, Any]:
        return {} if self._personal is None else {"personal": self._personal.values()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore the counts and what the limits follow."""
        self._post.late = self._late_recorded = values["late"]
        self._refused = values["refused"]
        self.limits.restore(values.get("norms", []))
        self._times.restore(values.get("times", []))
        if self._personal is not None:
            self._personal.restore(values["personal"])

    def summary(self) -> dict[str, Any]:
        """Return the counts of failures over the run."""
        return {
            "late_replies": self._post.late,
            "refused_replies": self._refused,
            "turned_away": self._roster.turned_away,
            "versions": {"fedprox": __version__, "flwr": flwr.__version__, "numpy": np.__version__},
        }

    def _followed(self) -> dict[str, Any]:
        return {"norms": self.limits.values(), "times": self._times.values()}

    def _work(self, asked: Sequence[Task], broadcast: Broadcast, collected: Collected) -> dict[int, Answered]:
        """Have the method work with all devices, in as many exchanges as it poses subproblems; return the replies."""
        if self._method.needs_gradients:
            unasked = [task.device for task in asked if task.device not in self._gradients.asked]
            self._ask_for_gradients(unasked, None)
            collected.problems.update(
                {task.device: why for task in asked if (why := self._gradients.problems.get(task.device))}
            )
        at_work = {task.device: self._start(task, broadcast) for task in asked if task.device not in collected.problems}
        replies: dict[int, Answered] = {}
        while at_work:
            questions: dict[int, Question] = {}
            gradients: dict[int, RemoteGradients] = {}
            for device, remote in at_work.items():
                try:
                    step = remote.advance(self._method, broadcast, self._rate(broadcast.round))
                except ArithmeticError as error:  # a power of what the device claims may be beyond all numbers
                    collected.refuse(device, reason := f"the method cannot compute with it: {error}")
                    self.count_refused(broadcast.round, {device: reason})
                    continue
                if isinstance(step, Question):
                    questions[device] = step
                elif isinstance(step, GradientQuestion):
                    gradients[device] = RemoteGradients(self._roles, step.at)
                else:
                    replies[device], collected.work[device] = Answered(remote, step), remote.work()
            answered = self._exchange(questions, broadcast, collected) if questions else {}
            found = self._gradients_of(gradients, broadcast, collected) if gradients else {}
            at_work = {device: at_work[device] for device in (*answered, *found)}
            for device, work in answered.items():
                at_work[device].answers.append((overlay_names(broadcast.params, work.params), work))
            for device, gradient in found.items():
                at_work[device].gradients.append(gradient)
        return replies

    def _refuse_excess(
        self, request: RoundRequest, collected: Collected, replies: Mapping[int, Answered]
    ) -> dict[int, dict[str, float]]:
        """Refuse replies that add too much, the worst first, and return the norms of those that are left."""
        while (worst := self.limits.worst(norms := self._norms(request, collected, replies))) is not None:
            device, reason = worst
            collected.refuse(device, reason)
            self.count_refused(request.broadcast.round, {device: reason})
        return norms

    def _norms(
        self, request: RoundRequest, collected: Collected, replies: Mapping[int, Answered]
    ) -> dict[int, dict[str, float]]:
        """Return for each device that would be merged the norms that limits are for."""
        broadcast = request.broadcast
        anchor = self.messages.sent(broadcast.params)
        shares = request.settle(*collected.replied(request.tasks))
        merged = [
            task._replace(weight=float(shares.weights[position]))
            for position, task in enumerate(request.tasks)
            if task is not None and shares.kept[position]
        ]
        norms = {task.device: {"update": distance(collected.work[task.device].params, anchor)} for task in merged}
        for device, own in norms.items():
            if replies[device].remote.gave_loss:
                own["loss"] = abs(collected.work[device].loss)
        if self._method.sends_model_only or self._mechanism is not None or request.merge is None:
            return norms
        contributions = []
        for task in merged:
            remote, reply = replies[task.device]
            still = remote.still(self._method, broadcast, self._rate(broadcast.round))
            received = task.received(reply, collected.work[task.device].steps)
            contributions.append(Contribution(received, reply.state, still))
        for task, added in zip(merged, measure_additions(contributions, request.merge), strict=True):
            norms[task.device] |= added
        return norms

    def _with_gradients(self, norms: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
        """Return the norms of a round with those of the gradients it began with."""
        gradients = self._gradients.norms if self._method.needs_gradients else {}
        devices = sorted({*norms, *gradients})
        return {device: {**norms.get(device, {}), **gradients.get(device, {})} for device in devices}

    def _start(self, task: Task, broadcast: Broadcast) -> RemoteWork:
        state = self._method.start_device(broadcast.params) if task.state is None else task.state
        return RemoteWork(task, state, self._gradients.found.get(task.device), self._solver_for(task.device))

    def _exchange(
        self, questions: Mapping[int, Question], broadcast: Broadcast, collected: Collected
    ) -> dict[int, WorkReport]:
        """Send devices their subproblems, and return the work that can be used."""
        anchor = self.messages.sent(broadcast.params)
        messages = {
            device: self.messages.instruction(
                device,
                broadcast,
                question,
                self._version(device, broadcast.round, is_first=device not in collected.bytes),
            )
            for device, question in questions.items()
        }
        seconds = max((one.seconds for one in messages.values()), default=0.0)
        answers = self._ask({device: one.to_records() for device, one in messages.items()}, MessageType.TRAIN, seconds)
        expected = {device: self.messages.expected(messages[device], one) for device, one in questions.items()}
        work = collected.sort(answers, expected, anchor)
        complete = (device for device, done in work.items() if not done.stopped_by_time)
        self._times.take_note([(questions[device].budget, answers[device].seconds) for device in complete])
        refused = {device: collected.refused[device] for device in questions if device in collected.refused}
        self.count_refused(broadcast.round, refused)
        for device, message in messages.items():
            up = count_bytes(work[device].params) if device in work else 0
            collected.bytes[device] = collected.bytes.get(device, 0) + bytes_down(message) + up
        return work

    def _gradients_of(
        self, asked: Mapping[int, RemoteGradients], broadcast: Broadcast, collected: Collected
    ) -> dict[int, Tree]:
        """Ask devices for their gradients at models of their own, and return those that can be used."""
        messages = {device: ModelQuery(one.sent).to_records() for device, one in asked.items()}
        found = take_gradients(asked, self._ask(messages, GRADIENT, self._times.longest()), collected)
        refused = {device: collected.refused[device] for device in asked if device in collected.refused}
        self.count_refused(broadcast.round, refused)
        return found

    def _version(self, device: int, round: int, *, is_first: bool) -> PersonalVersion | None:
        """Return the personal parameters of a device in a round; the first of its subproblems trains them."""
        if self._personal is None:
            return None
        return self._personal.to_train(device, round) if is_first else self._personal.to_read(device)

    def count_refused(self, round: int, refused: Mapping[int, str]) -> None:
        """Count replies that are refused, and log why."""
        self._refused += len(refused)
        for device, reason in refused.items():
            _LOG.warning("round %d: the reply of device %d is refused: %s", round, device, reason)

    def _ask(self, records: Mapping[int, Any], kind: str, seconds: float) -> dict[int, NodeAnswer]:
        """Send each device its message and return its answer; 0 seconds: wait as long as it takes."""
        nodes = {device: self._roster.node(device) for device in records}
        wait = self.messages.wait(seconds)
        answers = self._post.ask({nodes[device]: one for device, one in records.items()}, kind, seconds=wait)
        return {device: answers[node] for device, node in nodes.items()}

    def _outcome(self, request: RoundRequest, collected: Collected) -> RoundOutcome:
        """Return the outcome of a round, before anything is merged."""
        devices = [None if task is None else task.device for task in request.tasks]
        work = [None if device is None else collected.work.get(device) for device in devices]
        replied, cut_off = collected.replied(request.tasks)
        late, self._late_recorded = self._post.late - self._late_recorded, self._post.late
        return replace(
            RoundOutcome.empty(request),
            steps=[one.steps if one else 0 for one in work],
            replied=replied,
            cut_off=cut_off,
            gammas=[None if one is None else one.gamma for one in work] if request.gammas else None,
            bytes=[0 if device is None else collected.bytes.get(device, 0) for device in devices],
            columns={**collected.record(devices), "late": late},
            problems=collected.problems,
        )

    def _ask_for_gradients(self, devices: Sequence[int], params: Tree | None) -> None:
        """Ask devices for their gradient at `params`; None: at the model that others were asked about."""
        if params is not None:
            self._gradients = RemoteGradients(self._roles, params)
        gradients = self._gradients
        if not devices:
            return
        question = ModelQuery(gradients.sent).to_records()
        refused: dict[int, str] = {}
        for device, answer in self._ask(dict.fromkeys(devices, question), GRADIENT, self._times.longest()).items():
            if answer.records is None:
                gradients.problems[device] = f"no gradient: {answer.problem}"
            elif reason := gradients.take(device, answer.records):
                refused[device] = reason
        refused |= gradients.refuse_excess(self.limits)
        self._refused += len(refused)
        for device, reason in refused.items():
            _LOG.warning("the gradient of device %d is refused: %s", device, reason)
