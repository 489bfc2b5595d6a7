"""What a round's replies from real devices add up to, with the weights of those who are kept.

Under privacy a reply is an update, clipped on the server unless the device has done it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedprox.config import Config
from fedprox.core.trees import Tree, difference, overlay_names, squared_distance
from fedprox.deploy.messages import WorkReport
from fedprox.deploy.personal_versions import PersonalVersions
from fedprox.deploy.remote_work import RemoteWork
from fedprox.deploy.weight_limit import warn_of_limited
from fedprox.engines import RoundOutcome, RoundRequest
from fedprox.methods import Method, Reply
from fedprox.methods.merging import ReplySums
from fedprox.privacy import clip
from fedprox.privacy.mechanism import Mechanism

__all__ = ["Answered", "ReplyMerge"]


class Answered(NamedTuple):
    """A device's part in a round, and what its method made of its answers."""

    remote: RemoteWork
    reply: Reply


class ReplyMerge:
    """Adds up the replies of a round.

    Args:
      mechanism: of privacy, where there is one.
      personal: the versions of the devices' personal parameters, where there are such.
      hides_drift: whether the server may not know how far a device moved.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        mechanism: Mechanism | None,
        personal: PersonalVersions | None,
        *,
        hides_drift: bool,
    ) -> None:
        self._config, self._method, self._mechanism = config, method, mechanism
        self._personal, self._hides_drift = personal, hides_drift

    def add_up(
        self,
        request: RoundRequest,
        outcome: RoundOutcome,
        work: Mapping[int, WorkReport],
        replies: Mapping[int, Answered],
    ) -> tuple[Tree, Tree]:
        """Add up the replies of those who are kept, or keep each, and note in the outcome what they leave behind."""
        broadcast = request.broadcast
        shares = request.settle(outcome.replied, outcome.cut_off)
        if self._mechanism is None:
            warn_of_limited(self._config.deploy.max_weight, broadcast.round, request.tasks, shares.weights)
        anchor = self._method.shared(broadcast.params)
        sums = ReplySums(len(request.tasks))
        for position, task in enumerate(request.tasks):
            if task is None or not shares.kept[position]:
                continue
            own = task._replace(weight=float(shares.weights[position]))
            reply, done = self._private(replies[task.device].reply, anchor), work[task.device]
            outcome.states[position] = reply.state
            if self._personal is not None:
                self._personal.merge(task.device)
            if broadcast.wants_drift and not self._hides_drift:
                params = self._method.shared(overlay_names(broadcast.params, done.params))
                outcome.drift2[position] = squared_distance(params, anchor)
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
