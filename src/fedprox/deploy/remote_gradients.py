"""The gradients of devices at one model, for methods that need them before the devices start (FedDANE).

Their mean moves every device, so that each is bounded like an update: it must be finite, and not beyond the limit that
follows from the norms of the other gradients and of those of the last rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedprox.core.trees import Tree, flatten_names, overlay_names, scale
from fedprox.deploy.message_records import attempt
from fedprox.deploy.messages import Gradient
from fedprox.deploy.norm_limits import NormLimits
from fedprox.deploy.reply_checks import wrong_arrays
from fedprox.engines import Task
from fedprox.methods.merging import RoundSum
from fedprox.methods.parameter_roles import ParameterRoles

__all__ = ["RemoteGradients"]


class RemoteGradients:
    """What devices have answered that were asked for grad F_k(w^t).

    Args:
      at: w^t.

    Attributes:
      sent: what of w^t is sent, by name.
      found: the gradients that can be used, by device.
      problems: why there is none, by device.
    """

    def __init__(self, roles: ParameterRoles, at: Tree = None) -> None:
        self.at, self.sent = at, flatten_names(roles.exchanged(at))
        self.found: dict[int, Tree] = {}
        self.problems: dict[int, str] = {}

    @property
    def asked(self) -> set[int]:
        """The devices whose answer is known."""
        return {*self.found, *self.problems}

    @property
    def norms(self) -> dict[int, dict[str, float]]:
        """||grad F_k(w^t)|| of those that can be used, as `NormLimits` takes it."""
        return {device: {"gradient": _norm(gradient)} for device, gradient in self.found.items()}

    def take(self, device: int, records: Any) -> str | None:
        """Keep a gradient, or return why it cannot be used."""
        sent, reason = attempt(lambda: Gradient.from_records(records, self.sent))
        if sent is not None:
            reason = wrong_arrays(sent.params, self.sent)
        if sent is None or reason is not None:
            return self.refuse(device, str(reason))
        self.found[device] = overlay_names(jax.tree.map(np.zeros_like, self.at), sent.params)
        return None

    def refuse(self, device: int, reason: str) -> str:
        """Leave out the gradient of a device, and return why."""
        self.found.pop(device, None)
        self.problems[device] = f"no gradient: refused: {reason}"
        return reason

    def refuse_excess(self, limits: NormLimits) -> dict[int, str]:
        """Leave out gradients that are beyond the limit, the largest first, and return why."""
        refused: dict[int, str] = {}
        while (worst := limits.worst(self.norms)) is not None:
            device, reason = worst
            refused[device] = self.refuse(device, reason)
        return refused

    def mean(self, tasks: Sequence[Task | None]) -> Tree:
        """Return the mean over those of the tasks whose device has answered, with their weights."""
        asked = [task for task in tasks if task is not None]
        answered = sum(task.weight for task in asked if task.device in self.found)
        missing = any(task.device not in self.found for task in asked)
        total = RoundSum(len(tasks))
        for position, task in enumerate(tasks):
            if task is not None and task.device in self.found:
                share = task.weight / answered if missing else task.weight
                total.add(position, scale(self.found[task.device], share))
        return total.result()


def _norm(tree: Tree) -> float:
    parts = (np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree))
    return math.sqrt(sum(float(part @ part) for part in parts))
