"""Threads that run compiled programs side by side; the programs release Python's lock while they run.

The calling thread is one of them: waking it up for every answer would cost more than a small device's work. The
others wait on one queue. They are plain threads, not those of an executor, whose futures cost a round of small devices
two percent of its time.
"""

from __future__ import annotations

import atexit
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import chain, islice
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

from fedprox.core.machine import usable_cores

__all__ = ["Workers"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Jobs = SimpleQueue[Callable[[], None] | None]  # None: the end


class Workers:
    """The calling thread and its helpers."""

    def __init__(self, count: int = 0) -> None:
        self.count = count or usable_cores()
        self._jobs: Jobs = SimpleQueue()
        self._helpers = [_Helper(self._jobs) for _ in range(1, self.count)]
        self._dismiss = weakref.finalize(self, _dismiss, self._jobs, len(self._helpers))
        for helper in self._helpers:
            helper.start()
            _alive.add(helper)

    def run(self, task: Callable[[Item], Answer], items: list[Item], costs: list[int]) -> list[Answer]:
        """Return task(item) for all items; the most costly ones are begun first. A task must not call `run` itself."""
        answers: list[Any] = [None] * len(items)
        pending = iter(sorted(range(len(items)), key=lambda position: -costs[position]))
        begun: list[None] = []  # one for each helper that takes part
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def work(positions: Iterator[int]) -> None:
            try:
                for position in positions:
                    answers[position] = task(items[position])
            finally:
                _exhaust(pending)  # after an error nothing more is begun

        def assist() -> None:
            begun.append(None)
            error = None
            try:
                work(pending)  # shared: each position goes to one thread
            except BaseException as caught:  # it is raised where the answers are collected
                error = caught
            ended.put(error)

        first = list(islice(pending, 1))  # the most costly one stays here, where idle helpers can work ahead for it
        for _ in zip(items[1:], self._helpers, strict=False):  # whichever are fewer
            self._jobs.put(assist)
        work(chain(first, pending))
        for _ in begun:  # a thread that begins after this finds nothing to do
            error = ended.get()
            if error is not None:
                raise error
        return answers

    def ahead(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the items; while one is in use, a helper that has nothing else to do makes the next one."""
        if not self._helpers:
            yield from items
            return
        item = next(items, None)
        while item is not None:
            following: Future[Item | None] = Future()
            self._jobs.put(partial(_make, following, items))
            yield item
            item = next(items, None) if following.cancel() else following.result()

    def close(self) -> None:
        """End the threads. Later tasks run in the calling thread alone."""
        self._dismiss()
        for helper in self._helpers:
            helper.wait_for_the_end()
        self._helpers = []


class _Helper(Thread):
    """A thread that runs jobs until it is dismissed."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(daemon=True)
        self.jobs = jobs
        self._is_over = Event()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # and what it holds, before the next one comes
        self._is_over.set()

    def wait_for_the_end(self) -> None:
        self._is_over.wait()  # after an interrupt of `join`, Python takes the thread for ended
        self.join()


_alive: weakref.WeakSet[_Helper] = weakref.WeakSet()


@atexit.register  # a thread still inside a program when Python exits would abort the process
def _end_all() -> None:
    alive = [helper for helper in _alive if helper.is_alive()]  # a forked copy has none of them
    for helper in alive:
        helper.jobs.put(None)  # it may have been dismissed already, or not: one more does no harm
    for helper in alive:
        helper.wait_for_the_end()


def _dismiss(jobs: Jobs, helpers: int) -> None:
    for _ in range(helpers):
        jobs.put(None)


def _make(future: Future[Item | None], items: Iterator[Item]) -> None:
    """Make the next item, unless it has been requested already."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(next(items, None))
    except BaseException as error:  # it is raised where the item is needed
        future.set_exception(error)


def _exhaust(items: Iterator[Any]) -> None:
    deque(items, maxlen=0)
