"""What a device is sent so that it works on its subproblem, and what the server then expects of its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedprox.config import Config
from fedprox.core.trees import Tree, flatten_names
from fedprox.deploy.message_records import Named
from fedprox.deploy.messages import Instruction, PersonalVersion
from fedprox.deploy.remote_work import Question
from fedprox.deploy.reply_checks import Expected
from fedprox.deploy.work_times import WorkTimes
from fedprox.engines import Broadcast
from fedprox.methods.parameter_roles import ParameterRoles
from fedprox.methods.traffic import count_bytes
from fedprox.privacy import build_mechanism
from fedprox.solvers import Solver

__all__ = ["WorkMessages", "bytes_down"]


class WorkMessages:
    """Writes the messages of a run that ask for work.

    Args:
      roles: which parameters are sent.
      times: how long devices may work.
    """

    def __init__(
        self, config: Config, solver_for: Callable[[int], Solver], roles: ParameterRoles, times: WorkTimes
    ) -> None:
        self._config, self._solver_for, self._roles, self._times = config, solver_for, roles, times
        self._mechanism = build_mechanism(config)

    def instruction(
        self, device: int, broadcast: Broadcast, question: Question, personal: PersonalVersion | None = None
    ) -> Instruction:
        """Return what a device is asked to do."""
        posed, budget = question

        def sent(tree: Tree) -> Named | None:
            return None if tree is None else self.sent(tree)

        return Instruction(
            device,
            self.sent(broadcast.params),
            sent(posed.linear),
            broadcast.round,
            posed.mu,
            budget,
            self._times.allowed(budget),
            sent(posed.anchor),
            sent(posed.start),
            personal,
            posed.gamma,
        )

    def expected(self, message: Instruction, question: Question) -> Expected:
        """Return what the reply to a message must agree with."""
        may_stop = bool(question.posed.gamma or self._config.solver.gamma)
        return Expected(
            message.budget,
            message.seconds,
            spends_budget=self._solver_for(message.device).is_sgd and not may_stop,
            moves_at_once=self.hides_drift or question.posed.start is not None,
            max_norm=self._longest_update(message.params),
        )

    def sent(self, tree: Tree) -> Named:
        """Return by name what is sent of a tree."""
        return flatten_names(self._roles.exchanged(tree))

    def wait(self, seconds: float) -> float:
        """Return how long to wait for the reply of a device that may work for some seconds; 0: as long as it takes."""
        return seconds + self._config.deploy.grace if seconds else 0.0

    @property
    def hides_drift(self) -> bool:
        """Whether what a device sends has its own noise, so that its length says nothing."""
        return self._mechanism is not None and self._mechanism.on_devices and self._mechanism.share > 0

    def _longest_update(self, anchor: Named) -> float:
        """Return the largest ||w_k - w^t|| that a single reply may have, whatever the others have; 0: any."""
        chosen = self._config.deploy.max_norm
        limits = [chosen] if isinstance(chosen, float) and chosen > 0 else []
        if self._mechanism is not None and self._mechanism.on_devices:
            limits.append(self._mechanism.longest_update(anchor))
        return min(limits, default=0.0)


def bytes_down(message: Instruction) -> int:
    """Return the bytes of the arrays of a message."""
    parts: tuple[Any, ...] = (message.params, message.linear, message.anchor, message.start)
    return count_bytes(parts)
