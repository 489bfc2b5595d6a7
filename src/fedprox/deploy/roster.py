"""The roster: which node is which device of the population, and how many samples it has.

Flower's node ids are random, and without authentication new at every start. So each node is asked who it is, once: it
answers the `partition-id` of its node config. That is the device's number, under which everything is drawn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from flwr.app import MessageType, RecordDict

from fedprox.core.errors import RunError
from fedprox.deploy.device_data import sizes_only
from fedprox.deploy.message_exchange import NodeAnswer, Post
from fedprox.deploy.message_records import attempt
from fedprox.deploy.messages import Introduction
from fedprox.population import Population

__all__ = ["Roster"]

_LOG = logging.getLogger("fedprox.deploy")


class Roster:
    """The devices of a federation, from 0 to N - 1.

    Args:
      max_samples: the most training samples that a device may claim; 0: any.
      nodes: the node ids of devices 0 to N - 1, which Flower binds to keys; empty: a node says which device it is.
    """

    def __init__(
        self,
        devices: int,
        post: Post,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        max_samples: int = 0,
        nodes: Sequence[int] = (),
    ) -> None:
        self._devices, self._max_samples, self._bound = devices, max_samples, list(nodes)
        self._post = post
        self._now, self._sleep = now, sleep
        self._asked: set[int] = set()
        self._known: dict[int, Introduction] = {}  # device -> what it said
        self._nodes: dict[int, int] = {}  # device -> node
        self._refusals: dict[int, str] = {}  # node -> why its introduction was not accepted

    def gather(self, seconds: float) -> None:
        """Wait until every device has introduced itself."""
        end = self._now() + seconds
        while True:
            self.meet(max(end - self._now(), 1.0))
            missing = [device for device in range(self._devices) if device not in self._nodes]
            if not missing:
                return
            if self._now() >= end:
                why = f"; turned away: {'; '.join(self.turned_away)}" if self.turned_away else ""
                raise RunError(
                    f"all {self._devices} devices must join within {seconds:g} seconds (`deploy.join_seconds`); "
                    f"device {missing[0]} has not{why}"
                )
            self._sleep(0.5)

    def meet(self, seconds: float) -> None:
        """Ask the nodes that are new who they are; while a device is missing, also those that were turned away."""
        new = self.strangers()
        if not new:
            return
        answers = self._post.ask({node: RecordDict() for node in sorted(new)}, MessageType.QUERY, seconds=seconds)
        for node, answer in answers.items():
            self.hear(node, answer)

    def strangers(self) -> set[int]:
        """Return the nodes that are to be asked who they are."""
        online = self._post.online()
        at_work = set(self._nodes.values())
        is_complete = len(self._nodes) == self._devices and at_work <= online
        new = online - at_work - (self._asked if is_complete else set())
        self._asked |= new
        return new

    def hear(self, node: int, answer: NodeAnswer) -> None:
        """Record how a node identifies itself."""
        records = answer.records
        if records is None:
            self._turn_away(node, str(answer.problem))
            return
        said, problem = attempt(lambda: Introduction.from_records(records))
        if said is None:
            self._turn_away(node, str(problem))
        else:
            self._accept(node, said)

    @property
    def turned_away(self) -> list[str]:
        """The nodes that are not part of the federation, and why."""
        return [f"node {node}: {why}" for node, why in self._refusals.items()]

    def node(self, device: int) -> int:
        """Return the node of a device."""
        return self._nodes[device]

    def samples(self, device: int) -> Introduction:
        """Return what a device reported about itself."""
        return self._known[device]

    @property
    def devices(self) -> range:
        """The devices."""
        return range(self._devices)

    def population(self) -> Population:
        """Return the population as the server knows it: its sizes."""
        said = [self._known[device] for device in self.devices]
        return sizes_only([one.train_samples for one in said], [one.test_samples for one in said])

    def _accept(self, node: int, said: Introduction) -> None:
        if said.device >= self._devices:
            self._turn_away(node, f"its partition-id must be below {self._devices}; got {said.device}")
        elif problem := self._false_claim(node, said):
            self._turn_away(node, problem)
        elif said.device in self._nodes and self._nodes[said.device] in self._post.online():
            self._turn_away(node, f"device {said.device} is already registered, as node {self._nodes[said.device]}")
        else:
            self._known.setdefault(said.device, said)
            self._nodes[said.device] = node
            self._refusals.pop(node, None)

    def _false_claim(self, node: int, said: Introduction) -> str | None:
        """Return why what a node reports about itself cannot be true, or None."""
        if self._bound and self._bound[said.device] != node:
            return f"device {said.device} must be node {self._bound[said.device]} (`deploy.nodes`)"
        if self._max_samples and said.train_samples > self._max_samples:
            rule = f"it must have at most {self._max_samples} training samples (`deploy.max_samples`)"
            return f"{rule}; got {said.train_samples}"
        known = self._known.get(said.device, said)
        if known != said:
            before, now = ((one.train_samples, one.test_samples) for one in (known, said))
            return f"device {said.device} must have {before} training and test samples, as before; got {now}"
        return None

    def _turn_away(self, node: int, why: str) -> None:
        if self._refusals.get(node) != why:
            _LOG.warning("node %d is not part of the federation: %s", node, why)
        self._refusals[node] = why
