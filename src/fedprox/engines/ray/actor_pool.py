"""The actors of a run: free, at work, lost or starting.

Calls go one at a time to the next free actor, the most costly first. When an actor is lost, with its process or its
entire node, its call goes to another one, and a new actor is requested; it joins when the cluster has room and it has
compiled its programs. Everything random in a call is drawn for (seed, round, device), so that the second try gives the
same answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedprox.core.errors import FedProxError, OwnCodeError, RunError
from fedprox.engines.ray.cluster import Cluster

__all__ = ["Call", "Done", "Pool", "ray_message"]

_TRIES = 4  # how often a call may lose its actor before the call itself is assumed to be the cause
_PATIENCE = 120.0  # seconds to wait for an actor when there is none left
_TICK = 5.0  # seconds between two checks of all actors


@dataclass(frozen=True)
class Call:
    """Something to be done by one actor.

    `arguments()` is called again at every try; `repair()` is called before the next one, since what the arguments refer
    to may be lost as well. The actor `home` is preferred if it is free.
    """

    method: str
    arguments: Callable[[], tuple[Any, ...]]
    cost: int
    returns: int = 1
    home: int | None = None
    repair: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Done:
    """The outcome of a call: which actor did it, the first answer, and references to the other ones."""

    position: int
    actor: int
    answer: Any
    more: list[Any]


@dataclass(frozen=True)
class _Actor:
    number: int
    handle: Any
    failed: int  # how many were lost in its place, one after another, before they were ready


class Pool:
    """Actors that work on calls.

    Args:
      start: makes an actor and returns it with the reference to its first answer, which says that it is ready.
      check: looks at that answer and raises if such an actor cannot be used.
    """

    def __init__(
        self, cluster: Cluster, count: int, start: Callable[[], tuple[Any, Any]], check: Callable[[Any], None]
    ) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        self._looked = time.monotonic()
        self._start = start
        self._check = check
        self._made = 0
        self._ready: dict[int, _Actor] = {}
        self._starting: dict[Any, _Actor] = {}
        for _ in range(count):
            self._ask_for_one()

    def wait_until_ready(self) -> None:
        """Wait for the actors that are starting; in a busy cluster, not for all of them."""
        deadline = time.monotonic() + _PATIENCE
        while self._starting and time.monotonic() < deadline:
            self._see_who_is_ready(self._wait(list(self._starting)))
        self._need_an_actor()

    def run(self, calls: Sequence[Call]) -> Iterator[Done]:
        """Yield the outcomes of the calls as they complete."""
        waiting = sorted(range(len(calls)), key=lambda position: -calls[position].cost)
        running: dict[Any, tuple[int, _Actor, list[Any]]] = {}
        done: list[Done] = []
        tries = [0] * len(calls)
        while waiting or running or done:
            self._hand_out(waiting, calls, running)
            yield from done  # after the next calls are out, so that no actor waits while answers are taken
            done = []
            if not running:
                if waiting:
                    self._need_an_actor()
                continue
            ended = self._wait([*running, *self._starting])
            self._see_who_is_ready(ended)
            for reference in [each for each in ended if each in running]:
                position, actor, references = running.pop(reference)
                answer, lost = self._fetch(reference, actor)
                if lost is None:
                    done.append(Done(position, actor.number, answer, references[1:]))
                    continue
                tries[position] += 1
                if tries[position] == _TRIES:
                    raise RunError(f"a worker of the Ray cluster was lost {_TRIES} times at the same work: {lost}")
                calls[position].repair()
                waiting.insert(0, position)

    def _hand_out(self, waiting: list[int], calls: Sequence[Call], running: dict[Any, Any]) -> None:
        busy = {actor.number for _, actor, _ in running.values()}
        for actor in self._ready.values():
            if waiting and actor.number not in busy:
                position = _next(waiting, calls, actor.number)
                references = self._submit(actor, calls[position])
                running[references[0]] = (position, actor, references)

    def anywhere(self, call: Call) -> list[Any]:
        """Run a call out of turn, after the actor's current work; return the references to its answers."""
        for _ in range(_TRIES):
            self._need_an_actor()
            actor = next(iter(self._ready.values()))
            references = self._submit(actor, call)
            while not self._wait(references[:1]):
                pass
            _, lost = self._fetch(references[0], actor)
            if lost is None:
                return references
            call.repair()
        raise RunError(f"a worker of the Ray cluster was lost {_TRIES} times at the same work: {lost}")

    def close(self) -> None:
        """End all actors."""
        if self._cluster.is_lost:
            return
        for actor in (*self._ready.values(), *self._starting.values()):
            self._end(actor)
        self._ready, self._starting = {}, {}

    def _ask_for_one(self, failed: int = 0) -> None:
        handle, reference = self._start()
        self._starting[reference] = _Actor(self._made, handle, failed)
        self._made += 1

    def _submit(self, actor: _Actor, call: Call) -> list[Any]:
        method = getattr(actor.handle, call.method).options(num_returns=call.returns)
        arguments = call.arguments()
        with self._connected():
            references = method.remote(*arguments)
        return list(references) if call.returns > 1 else [references]

    def _wait(self, references: list[Any]) -> list[Any]:
        if time.monotonic() - self._looked > _TICK:
            self._cluster.look_after()
            self._looked = time.monotonic()
        with self._connected():
            done, _ = self._ray.wait(references, num_returns=1, timeout=_TICK)
            if len(references) > 1 and done:
                done, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return list(done)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Report in a sentence that this process has lost its own node, for which Ray raises a socket error."""
        try:
            yield
        except OSError as error:
            time.sleep(1.0)  # if an entire machine goes down, the head may be the last
            self._cluster.look_after()  # has its own sentence where the head is lost too
            self._cluster.is_lost = True
            raise RunError(
                f"this process has lost the node of the Ray cluster that it is connected to: {ray_message(error)} "
                "(a run folder continues from its checkpoint with --resume)"
            ) from None

    def _see_who_is_ready(self, done: Sequence[Any]) -> None:
        for reference in done:
            if reference in self._starting:
                actor = self._starting.pop(reference)
                answer, lost = self._fetch(reference, actor)
                if lost is None:
                    self._check(answer)
                    self._ready[actor.number] = actor
                    continue
                failed = actor.failed + 1  # counted per place: a node that goes down takes many with it at once
                if failed == _TRIES:
                    raise RunError(f"{_TRIES} workers of the Ray cluster in a row could not start: {lost}")
                self._replace(actor, failed)

    def _fetch(self, reference: Any, actor: _Actor) -> tuple[Any, str | None]:
        """Return an answer, or why it was lost; errors in the work itself are raised."""
        errors = self._ray.exceptions
        try:
            with self._connected():
                return self._ray.get(reference), None
        except errors.ObjectLostError as error:
            return None, ray_message(error)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, FedProxError) and not isinstance(cause, OwnCodeError):
                raise cause from None
            if isinstance(cause, errors.ObjectLostError):
                return None, ray_message(cause)
            raise cause from error  # whose text is the traceback on the node, for the author of the part that failed
        except errors.RayError as error:
            if self._ready.pop(actor.number, None) is not None:  # else it is replaced already
                self._replace(actor)
            return None, ray_message(error)

    def _replace(self, actor: _Actor, failed: int = 0) -> None:
        self._cluster.look_after()
        self._end(actor)
        self._ask_for_one(failed)

    def _end(self, actor: _Actor) -> None:
        with contextlib.suppress(Exception):  # it is gone already, or the cluster is
            self._ray.kill(actor.handle)

    def _need_an_actor(self) -> None:
        """Wait for an actor if there is none."""
        deadline = time.monotonic() + _PATIENCE
        while not self._ready:
            if not self._starting or time.monotonic() > deadline:
                raise RunError(f"all workers of the Ray cluster were lost, and none came back within {_PATIENCE:.0f} s")
            self._see_who_is_ready(self._wait(list(self._starting)))


def ray_message(error: BaseException) -> str:
    """Return Ray's message without its traceback."""
    first, *more = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {more[-1].strip()}" if more and "Error" in more[-1] else first


def _next(waiting: list[int], calls: Sequence[Call], actor: int) -> int:
    """Take the most costly call without a home or with this actor as its home; if there is none, any."""
    for index, position in enumerate(waiting):
        if calls[position].home in (None, actor):
            return waiting.pop(index)
    return waiting.pop(0)
