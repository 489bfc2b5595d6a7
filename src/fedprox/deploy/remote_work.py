"""A method at work on devices that are elsewhere.

`Method.work` runs on the server, with a device whose `solve` is an exchange of messages. Devices are asked side by
side: where a method poses a subproblem that has not been answered yet, its work stops there, the question goes out
with those of the other devices, and when the answers are in the work is done again from its beginning, with the
answers so far. Methods are pure, so that it comes to the same question. Most pose one subproblem, and a round is one
exchange. A gradient at a model of the method's choice is a question like any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from fedprox.core.errors import RunError
from fedprox.core.trees import Tree
from fedprox.deploy.messages import WorkReport
from fedprox.engines import Broadcast, Task, view_device
from fedprox.methods import Method, Posed, Reply
from fedprox.methods.custom_checks import checked_posed, checked_reply, checked_values
from fedprox.solvers import Solver

__all__ = ["GradientQuestion", "Question", "RemoteWork"]


class Question(NamedTuple):
    """A subproblem that a device is to work on."""

    posed: Posed
    budget: int


class GradientQuestion(NamedTuple):
    """A model at which a device is to give its gradient."""

    at: Tree


class _Unanswered(BaseException):
    def __init__(self, question: Question | GradientQuestion) -> None:
        self.question = question


@dataclass
class RemoteWork:
    """One device's part in a round: what its method asks of it, and what it has answered."""

    task: Task
    state: Tree
    gradient: Tree
    solver: Solver
    answers: list[tuple[Tree, WorkReport]] = field(default_factory=list)
    gradients: list[Tree] = field(default_factory=list)  # at the models that the method asked about, one after another
    gave_loss: bool = False  # whether the method has asked for F_k(w^t)

    def advance(
        self, method: Method, broadcast: Broadcast, learning_rate: float
    ) -> Question | GradientQuestion | Reply:
        """Return the next question to the device, or the reply where there is none left."""
        given, gradients = iter(self.answers), iter(self.gradients)

        def pose(posed: Posed, budget: int) -> tuple[Tree, int]:
            params, work = next(given, (None, None))
            if work is None:
                raise _Unanswered(Question(checked_posed(method, posed, broadcast.params), budget))
            return params, work.steps

        def gradient_at(params: Tree) -> Tree:
            if (gradient := next(gradients, None)) is None:
                raise _Unanswered(GradientQuestion(params))
            return gradient

        task = self.task
        view = view_device(broadcast, task.budget, self.state, self.gradient, self.solver, learning_rate, pose)
        try:
            found = method.work(view._replace(loss=self._loss, gradient_at=gradient_at))
        except _Unanswered as unanswered:
            return unanswered.question
        if not self.answers:
            raise RunError(f"method {method.name} must have every device solve a subproblem; work() solved none")
        return checked_reply(method, found, self.state)

    def still(self, method: Method, broadcast: Broadcast, learning_rate: float) -> Reply:
        """Return the reply of a device that does all its steps and stays where it begins."""

        def pose(posed: Posed, budget: int) -> tuple[Tree, int]:
            return broadcast.params if posed.start is None else posed.start, budget

        budget = self.task.budget
        view = view_device(broadcast, budget, self.state, self.gradient, self.solver, learning_rate, pose)
        return checked_values(method, method.work(view._replace(loss=self._loss, gradient_at=lambda _: self.gradient)))

    def _loss(self) -> float:
        """Return F_k(w^t), which comes with every answer."""
        self.gave_loss = True
        return self.answers[0][1].loss if self.answers else math.nan

    def work(self) -> WorkReport:
        """Return all that the device has done, as one; what is measured is measured in its first answer."""
        parts = [work for _, work in self.answers]
        first = parts[0]
        if len(parts) == 1:
            return first
        return WorkReport(
            first.params,
            sum(part.steps for part in parts),
            sum(part.seconds for part in parts),
            first.loss,
            any(part.stopped_by_time for part in parts),
            first.speed,
            first.gamma,
            first.lost_personal,
        )
