"""Real devices that reply at their own pace: each gets its message when its place is free, without waiting for others.

Every event is logged (`reply_log`) before the server acts on it: that a device was asked, its checked reply, or why
there is none. Flower's messages end with the run of the server. So a server that is started again takes the logged
events first, and sends the assignments whose message was lost once more; their devices do the same work again, since
draws follow from the seed, the version and the device.

A device that has not answered within its time and `deploy.grace` loses its place, and is not asked again before its
answer, or Flower's error, is there. Its reply is merged then with `deploy.late` = "merge", and otherwise counted as
late and refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import MessageType, RecordDict

from fedprox.core.errors import RunError
from fedprox.core.trees import overlay_names, squared_distance, total
from fedprox.deploy.message_exchange import POLL, NodeAnswer, Post
from fedprox.deploy.message_records import attempt
from fedprox.deploy.messages import Instruction, WorkReport
from fedprox.deploy.norm_limits import NormLimits
from fedprox.deploy.remote_work import Question, RemoteWork
from fedprox.deploy.reply_additions import Contribution, measure_additions
from fedprox.deploy.reply_checks import Expected, distance, reason_to_refuse
from fedprox.deploy.reply_log import ReplyLog
from fedprox.deploy.roster import Roster
from fedprox.deploy.work_messages import WorkMessages, bytes_down
from fedprox.deploy.work_times import WorkTimes
from fedprox.engines import Broadcast, Task
from fedprox.methods import Reply
from fedprox.methods.traffic import count_bytes
from fedprox.solvers.schedules import build_schedule
from fedprox.training.arrivals import Arrival, Assignment, Choose
from fedprox.training.merge_step import MergeStep
from fedprox.training.run_parts import RunParts

__all__ = ["FlowerArrivals"]

_MEET = 5.0  # seconds between two checks for new nodes
_INTRODUCTION = 60.0  # seconds after which a node that has not said who it is may be asked again
_LOG = logging.getLogger("fedprox.deploy")


@dataclass
class _Sent:
    """A message that a device was sent."""

    assignment: Assignment
    message: Instruction
    expected: Expected
    at: float
    is_overdue: bool = False


class FlowerArrivals:
    """Devices of a Flower federation that are asked one by one.

    Args:
      parts: of the run; its state has the models that devices were given.
      count_refused: takes note of a refused reply, given the round and the reason by device.
    """

    def __init__(
        self,
        parts: RunParts,
        roster: Roster,
        post: Post,
        messages: WorkMessages,
        times: WorkTimes,
        limits: NormLimits,
        count_refused: Callable[[int, Mapping[int, str]], None],
        log: ReplyLog,
    ) -> None:
        self._parts, self._roster, self._post, self._messages = parts, roster, post, messages
        self._times, self._limits, self._count_refused, self._log = times, limits, count_refused, log
        self._config, self._method, self._state = parts.config, parts.method, parts.state
        self._merge_step = MergeStep(parts)
        self._rate = build_schedule(parts.config.solver, parts.config.rounds)
        self._sent: dict[str, _Sent] = {}  # by the ids of the messages
        self._position = 0  # of the next event of the log
        self._saved: deque[int] = deque([0, 0], maxlen=2)  # the positions of the last two checkpoints
        self._ready: deque[Arrival] = deque()  # live events, which are in the log
        self._introductions: dict[str, tuple[int, float]] = {}  # message -> the node that was asked, and when
        self._met = self._idle_since = post.now()
        self._late = 0

    def busy(self) -> set[int]:
        """Return the devices that have not answered yet."""
        return {sent.assignment.device for sent in self._sent.values()}

    def next(self, under_way: Mapping[int, Assignment], choose: Choose) -> Assignment | Arrival | None:
        """Return the next event; None where no device is at work, and none can be asked now."""
        if self._position == len(self._log):
            self._go_on(under_way, choose)
        if self._position == len(self._log):
            self._check_patience()
            return None
        self._idle_since = self._post.now()
        event = self._log[self._position]
        self._position += 1
        if "asked" in event:
            return Assignment(*event["asked"])
        if self._ready and self._ready[0].order == event["order"]:
            return self._ready.popleft()
        assignment = under_way[event["order"]]
        if event["problem"] is None:
            arrays, values = self._log.reply(event["order"])
            work = WorkReport(arrays, **values["work"])
            return self._arrival(assignment, work, values["norms"], values["waited"], values["bytes"])
        return _failure(assignment, event["problem"], event["waited"], event["bytes"], is_over=event["is_over"])

    def values(self) -> dict[str, Any]:
        """Return how many events have been acted upon; replies that no checkpoint needs any more are deleted."""
        self._log.forget(self._saved[0])
        self._saved.append(self._position)
        return {"position": self._position}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Return to a number of events."""
        self._position = values["position"]
        self._saved = deque([0, 0], maxlen=2)

    @property
    def _merges_late(self) -> bool:
        return self._config.deploy.late == "merge"

    def take_late(self) -> int:
        """Return how many late replies were refused since the last call."""
        late, self._late = self._late, 0
        return late

    def _go_on(self, under_way: Mapping[int, Assignment], choose: Choose) -> None:
        """Ask devices for the free places, and wait for an event, unless no device is at work."""
        self._meet()
        known = {sent.assignment.order for sent in self._sent.values()}
        lost = [assignment for order, assignment in under_way.items() if order not in known]
        here = self._here() - {assignment.device for assignment in lost}
        self._send(lost)
        for assignment in (chosen := choose(here)):
            self._log.add({"asked": list(assignment)})
        self._send(chosen)
        while self._position == len(self._log):
            self._receive()
            if self._position < len(self._log) or all(sent.is_overdue for sent in self._sent.values()):
                return
            self._post.sleep(POLL)

    def _meet(self) -> None:
        """Ask nodes that are new who they are; the answers come in with the others."""
        if (now := self._post.now()) - self._met < _MEET:
            return
        self._met = now
        self._introductions = {key: each for key, each in self._introductions.items() if now - each[1] < _INTRODUCTION}
        new = self._roster.strangers() - {node for node, _ in self._introductions.values()}
        if new:
            waiting, _ = self._post.send(dict.fromkeys(sorted(new), RecordDict()), MessageType.QUERY, seconds=_MEET)
            self._introductions |= {identity: (node, now) for identity, node in waiting.items()}

    def _here(self) -> set[int]:
        """Return the devices that can be asked."""
        online, busy = self._post.online(), self.busy()
        return {device for device in self._roster.devices if self._roster.node(device) in online and device not in busy}

    def _check_patience(self) -> None:
        """Wait a moment for devices that are away; end the run, in a way that it can be resumed, after a long time."""
        seconds = self._config.deploy.join_seconds
        if self._post.now() - self._idle_since > seconds:
            raise RunError(
                f"a device must be online within {seconds:g} seconds (`deploy.join_seconds`) while none is at work; "
                "none was"
            )
        self._post.sleep(POLL)

    def _send(self, assignments: Collection[Assignment]) -> None:
        """Send devices their messages."""
        if not assignments:
            return
        self._post.group = str(self._state.round + 1)
        prepared = [self._prepared(assignment) for assignment in assignments]
        nodes = {self._roster.node(sent.assignment.device): sent for sent in prepared}
        seconds = max(sent.message.seconds for sent in prepared)
        contents = {node: sent.message.to_records() for node, sent in nodes.items()}
        waiting, answers = self._post.send(contents, MessageType.TRAIN, seconds=self._messages.wait(seconds))
        self._sent |= {identity: nodes[node] for identity, node in waiting.items()}
        for node, answer in answers.items():
            self._fail(nodes[node], str(answer.problem), 0.0)

    def _prepared(self, assignment: Assignment) -> _Sent:
        broadcast = self._broadcast(assignment)
        question = self._remote(assignment).advance(self._method, broadcast, self._rate(broadcast.round))
        if not isinstance(question, Question):
            raise RunError(f"method {self._method.name} must have every device solve a subproblem; work() solved none")
        message = self._messages.instruction(assignment.device, broadcast, question)
        expected = self._messages.expected(message, question)
        return _Sent(assignment, message, expected, self._post.now())

    def _broadcast(self, assignment: Assignment) -> Broadcast:
        given = self._state.given[assignment.version]
        return Broadcast(assignment.version + 1, given.params, given.sent, given.mu, self._merge_step.wants_drift)

    def _remote(self, assignment: Assignment) -> RemoteWork:
        device = assignment.device
        mass = min(assignment.samples / len(self._parts.population.train), self._parts.max_weight)
        task = Task(device, assignment.budget, 1.0, mass)
        return RemoteWork(task, None, None, self._parts.solver_for(device))

    def _receive(self) -> None:
        """Take the answers that have come in, and give up those that are overdue."""
        sent_at = {key: sent.at for key, sent in self._sent.items()}
        sent_at |= {key: at for key, (_, at) in self._introductions.items()}
        for identity, answer in self._post.receive(sent_at).items():
            if identity in self._sent:
                self._take(self._sent.pop(identity), answer)
            else:
                self._roster.hear(self._introductions.pop(identity)[0], answer)
        for sent in self._sent.values():
            wait = self._messages.wait(sent.message.seconds)
            if wait and not sent.is_overdue and self._post.now() - sent.at >= wait:
                sent.is_overdue = True
                self._fail(sent, f"no answer within {wait:g} seconds", wait, is_over=not self._merges_late)

    def _take(self, sent: _Sent, answer: NodeAnswer) -> None:
        """Check an answer, and log the outcome."""
        if sent.is_overdue and not self._merges_late:
            self._post.late += answer.records is not None
            self._late += answer.records is not None
            return
        if answer.records is None:
            self._fail(sent, str(answer.problem), answer.seconds)
            return
        records = answer.records
        work, reason = attempt(lambda: WorkReport.from_records(records, sent.message.params))
        if work is not None:
            reason = reason_to_refuse(work, sent.message.params, sent.expected, answer.seconds)
        norms: dict[str, float] = {}
        if work is not None and reason is None:
            try:
                norms = self._norms(sent, work)
                worst = self._limits.worst({sent.assignment.device: norms})
                reason = None if worst is None else worst[1]
            except ArithmeticError as error:  # a power of what the device claims may be beyond all numbers
                reason = f"the method cannot compute with it: {error}"
        if work is None or reason is not None:
            self._count_refused(self._state.round + 1, {sent.assignment.device: str(reason)})
            self._fail(sent, f"refused: {reason}", answer.seconds)
        elif work.steps == 0 and work.stopped_by_time:
            self._fail(sent, "the time was up before its first step", answer.seconds)
        else:
            self._accept(sent, work, norms, answer.seconds)

    def _accept(self, sent: _Sent, work: WorkReport, norms: Mapping[str, float], waited: float) -> None:
        assignment, sent_bytes = sent.assignment, bytes_down(sent.message) + count_bytes(work.params)
        values = {name: value for name, value in asdict(work).items() if name != "params"}
        event = {"order": assignment.order, "device": assignment.device, "problem": None}
        self._log.add(event, work.params, {"work": values, "norms": norms, "waited": waited, "bytes": sent_bytes})
        if not work.stopped_by_time:
            self._times.take_note([(sent.message.budget, waited)])
        self._ready.append(self._arrival(assignment, work, norms, waited, sent_bytes))

    def _fail(self, sent: _Sent, problem: str, waited: float, *, is_over: bool = True) -> None:
        """Log that an assignment gives no reply, or none in time."""
        assignment, down = sent.assignment, bytes_down(sent.message)
        event = {"order": assignment.order, "device": assignment.device, "problem": problem, "is_over": is_over}
        self._log.add({**event, "waited": waited, "bytes": down})
        _LOG.warning("version %d: device %d: %s", assignment.version, assignment.device, problem)
        self._ready.append(_failure(assignment, problem, waited, down, is_over=is_over))

    def _arrival(
        self, assignment: Assignment, work: WorkReport, norms: Mapping[str, float], waited: float, sent_bytes: int
    ) -> Arrival:
        """Return a device's reply as the server merges it."""
        broadcast = self._broadcast(assignment)
        params = overlay_names(broadcast.params, work.params)
        reply = self._reply(assignment, work)
        drift2 = None
        if broadcast.wants_drift:
            drift2 = squared_distance(self._method.shared(params), self._method.shared(broadcast.params))
        self._limits.take_note({assignment.device: norms})
        return Arrival(
            assignment.order,
            reply,
            steps=work.steps,
            was_cut_off=work.stopped_by_time and work.steps < assignment.budget,
            gamma=work.gamma,
            drift2=drift2,
            bytes=sent_bytes,
            columns={"seconds": work.seconds, "waited": waited, "speed": work.speed, "loss": work.loss},
        )

    def _reply(self, assignment: Assignment, work: WorkReport) -> Reply:
        broadcast, remote = self._broadcast(assignment), self._remote(assignment)
        remote.answers.append((overlay_names(broadcast.params, work.params), work))
        reply = remote.advance(self._method, broadcast, self._rate(broadcast.round))
        if not isinstance(reply, Reply):
            raise RunError(
                f"method {self._method.name} must have a device solve one subproblem where replies are merged as they "
                "arrive; it solves several"
            )
        return reply

    def _norms(self, sent: _Sent, work: WorkReport) -> dict[str, float]:
        """Return how much a reply adds, as limits are for it."""
        assignment = sent.assignment
        norms = {"update": distance(work.params, sent.message.params)}
        if not self._method.sends_model_only:
            broadcast, remote = self._broadcast(assignment), self._remote(assignment)
            centre = self._method.centre(self._state.server, self._state.params)
            shift = self._method.shift(broadcast.params, centre)
            remote.answers.append((overlay_names(broadcast.params, work.params), work))
            still = remote.still(self._method, broadcast, self._rate(broadcast.round))
            reply, still = (_shifted(each, shift) for each in (self._reply(assignment, work), still))
            received = remote.task.received(reply, work.steps)
            [added] = measure_additions([Contribution(received, None, still)], self._merge_step.merged)
            norms |= {kind: norm for kind, norm in added.items() if kind != "device"}
            if remote.gave_loss:
                norms["loss"] = abs(work.loss)
        return norms


def _shifted(reply: Reply, shift: Any) -> Reply:
    return reply._replace(averaged=total(reply.averaged, shift))


def _failure(assignment: Assignment, problem: str, waited: float, sent_bytes: int, *, is_over: bool) -> Arrival:
    return Arrival(
        assignment.order, None, problem, is_over=is_over, bytes=sent_bytes, columns={"seconds": None, "waited": waited}
    )
