"""Messages out, answers in, by the server's own clock.

Flower's `send_and_receive` looks for answers every three seconds and loses track of whose answer is missing: the error
that stands in for a lost node carries another sender. Here each message keeps its device, answers are collected several
times a second, and those that arrive after the server has stopped waiting are counted and discarded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message, RecordDict

from fedprox.deploy.message_records import bounded

__all__ = ["POLL", "Grid", "NodeAnswer", "Post"]

POLL = 0.2
"""Seconds between two checks for answers."""
_TTL = 600.0  # seconds that a message stays valid after the server has stopped waiting


class Grid(Protocol):
    """What is used of Flower's `Grid`."""

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are connected."""

    def push_messages(self, messages: list[Message]) -> list[str]:
        """Send messages and return their ids."""

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        """Return the replies that have come in."""


@dataclass(frozen=True)
class NodeAnswer:
    """The outcome of a message: the records of the reply, or why there are none."""

    records: RecordDict | None
    problem: str | None
    seconds: float  # from sending to receiving, or to giving up


class Post:
    """Sends messages to nodes and collects the answers."""

    def __init__(
        self, grid: Grid, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._grid = grid
        self.now, self.sleep = now, sleep
        self._given_up: set[str] = set()  # messages whose answer may still come
        self.late = 0  # answers that came after the server had stopped waiting
        self.group = "0"  # what Flower groups messages by: the round

    def online(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self._grid.get_node_ids())

    def ask(self, contents: Mapping[int, RecordDict], kind: str, *, seconds: float = 0.0) -> dict[int, NodeAnswer]:
        """Send each node its message and wait for the answers, at most `seconds` (0: until each is there or failed)."""
        sent = self.now()
        waiting, answers = self.send(contents, kind, seconds=seconds)
        while waiting:
            for reply in self._pull([*waiting, *self._given_up]):
                identity = reply.metadata.reply_to_message_id
                if identity in waiting:
                    answers[waiting.pop(identity)] = _answer(reply, self.now() - sent)
                elif identity in self._given_up:
                    self._given_up.discard(identity)
                    self.late += reply.has_content()
            elapsed = self.now() - sent
            if seconds and elapsed >= seconds:
                break
            if waiting:
                self.sleep(POLL)
        for identity, node in waiting.items():
            answers[node] = NodeAnswer(None, f"no answer within {seconds:g} seconds", self.now() - sent)
            self._given_up.add(identity)
        return answers

    def send(
        self, contents: Mapping[int, RecordDict], kind: str, *, seconds: float = 0.0
    ) -> tuple[dict[str, int], dict[int, NodeAnswer]]:
        """Send each node its message; return the nodes by the ids of their messages, and why others got none.

        A message stays valid for some time after `seconds` (0: as long as Flower allows).
        """
        online = self.online()
        answers = {node: NodeAnswer(None, "the node is offline", 0.0) for node in contents if node not in online}
        asked = [node for node in contents if node in online]
        ttl = seconds + _TTL if seconds else None
        messages = [
            Message(contents[node], dst_node_id=node, message_type=kind, ttl=ttl, group_id=self.group) for node in asked
        ]
        ids = list(self._grid.push_messages(messages)) if messages else []
        waiting: dict[str, int] = {}
        for place, node in enumerate(asked):
            if place < len(ids) and ids[place]:
                waiting[ids[place]] = node
            else:
                answers[node] = NodeAnswer(None, "the message could not be sent", 0.0)
        return waiting, answers

    def receive(self, sent: Mapping[str, float]) -> dict[str, NodeAnswer]:
        """Return the answers that have come in, by the ids of the messages; `sent` says when each was sent."""
        found: dict[str, NodeAnswer] = {}
        for reply in self._pull(list(sent)) if sent else ():
            identity = reply.metadata.reply_to_message_id
            if identity in sent:
                found[identity] = _answer(reply, self.now() - sent[identity])
        return found

    def _pull(self, ids: list[str]) -> list[Message]:
        return list(self._grid.pull_messages(ids))


def _answer(reply: Message, seconds: float) -> NodeAnswer:
    if reply.has_content():
        return NodeAnswer(reply.content, None, seconds)
    reason = bounded(f"Flower reports error {reply.error.code}: {reply.error.reason or 'no reason given'}")
    return NodeAnswer(None, reason, seconds)
