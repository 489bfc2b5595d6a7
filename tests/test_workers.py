"""Threads that work side by side, and ahead."""

import subprocess
import sys
import threading
import time
import weakref

import pytest

from fedprox.core.threads import Workers


@pytest.mark.parametrize("count", [1, 2, 3])
def test_items_come_in_order_whoever_makes_them(count):
    workers = Workers(count)
    assert list(workers.ahead(iter(range(1, 50)))) == list(range(1, 50))
    workers.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_item_is_done_once(count):
    workers = Workers(count)
    for items in ([], [7], list(range(100))):
        assert workers.run(lambda item: item * item, items, items) == [item * item for item in items]
    workers.close()


def test_the_most_costly_item_is_begun_first():
    workers, begun = Workers(1), []
    workers.run(begun.append, ["small", "large", "middle"], [1, 100, 10])
    assert begun == ["large", "middle", "small"]
    workers.close()


def test_the_most_costly_item_is_begun_by_the_thread_that_asks_and_the_next_beside_it():
    workers, begun, both = Workers(2), [], threading.Barrier(2, timeout=10)

    def task(item):
        begun.append((item, threading.current_thread() is threading.main_thread()))
        if item != "small":
            both.wait()  # so that neither thread takes both

    workers.run(task, ["small", "large", "middle"], [1, 100, 10])
    assert set(begun[:2]) == {("large", True), ("middle", False)}
    assert begun[2][0] == "small"
    workers.close()


def test_two_items_are_worked_on_at_the_same_time():
    workers, both = Workers(2), threading.Barrier(2, timeout=10)
    assert len(workers.run(lambda item: both.wait(), [1, 2], [1, 1])) == 2
    workers.close()


def test_after_an_error_in_a_helper_nothing_more_is_begun():
    workers, failed, begun = Workers(2), threading.Event(), []

    def task(item):
        begun.append(item)
        if threading.current_thread() is threading.main_thread():
            failed.wait(timeout=10)
        else:
            failed.set()
            raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 8"):
        workers.run(task, list(range(10)), list(range(10)))
    assert set(begun) <= {9, 8, 7}  # one of either thread, and perhaps the next before the error is through
    workers.close()


def test_after_an_error_in_the_thread_that_asks_nothing_more_is_begun():
    workers, begun = Workers(2), []

    def task(item):
        begun.append(item)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        workers.run(task, list(range(100)), [1] * 100)
    workers.close()
    assert len(begun) < 10


def test_nobody_waits_for_a_helper_that_is_busy_elsewhere():
    workers, release, making = Workers(2), threading.Event(), threading.Event()

    def items():
        yield 1
        making.set()
        yield release.wait(timeout=60)

    coming = workers.ahead(items())
    next(coming)
    assert making.wait(timeout=10)
    began = time.monotonic()
    assert workers.run(lambda item: -item, [1, 2, 3], [1, 1, 1]) == [-1, -2, -3]
    assert time.monotonic() - began < 30
    release.set()
    assert next(coming) is True
    workers.close()


def test_the_threads_end_with_their_workers():
    before = threading.active_count()
    workers = Workers(3)
    assert threading.active_count() == before + 2
    workers.close()
    assert threading.active_count() == before
    workers = Workers(3)
    helpers = workers._helpers
    del workers
    for helper in helpers:
        helper.join(timeout=10)
    assert threading.active_count() == before


def test_what_a_task_holds_is_let_go_when_it_is_done():
    class Held:
        pass

    workers, both, held = Workers(2), threading.Barrier(2, timeout=10), Held()
    gone = weakref.ref(held)
    workers.run(lambda item, held=held: both.wait(), [1, 2], [1, 1])
    del held
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert gone() is None
    workers.close()


def test_an_idle_worker_makes_the_next_item():
    workers, made = Workers(2), []
    second = threading.Event()

    def items():
        for number in (1, 2, 3):
            made.append((number, threading.current_thread()))
            if number == 2:
                second.set()
            yield number

    coming = workers.ahead(items())
    assert next(coming) == 1
    assert second.wait(timeout=10)  # while the first is in use
    assert [next(coming), next(coming)] == [2, 3]
    assert made[0][1] is threading.current_thread()
    assert made[1][1] is not threading.current_thread()
    workers.close()


def test_nobody_waits_for_workers_that_are_busy():
    workers, release = Workers(2), threading.Event()
    results = []

    def busy(item):
        if item == "ahead":
            results.extend(workers.ahead(iter([1, 2, 3])))
            release.set()
        return release.wait(timeout=10)

    assert all(workers.run(busy, ["ahead", "waits"], [1, 1]))
    assert results == [1, 2, 3]
    workers.close()


def test_an_error_reaches_whoever_asks_for_the_item():
    def items():
        yield 1
        raise OSError("gone")

    workers = Workers(2)
    coming = workers.ahead(items())
    assert next(coming) == 1
    with pytest.raises(OSError, match="gone"):
        next(coming)
    workers.close()


class EmptyError(Exception):
    """An error that counts as false."""

    def __len__(self):
        return 0


def test_no_error_is_taken_for_none():
    workers, both = Workers(2), threading.Barrier(2, timeout=10)

    def task(item):
        both.wait()
        if threading.current_thread() is not threading.main_thread():
            raise EmptyError

    with pytest.raises(EmptyError):
        workers.run(task, [1, 2], [1, 1])
    workers.close()


def test_closed_workers_do_everything_in_the_thread_that_asks():
    workers = Workers(2)
    workers.close()
    assert workers.run(lambda item: threading.current_thread(), [1, 2], [1, 1]) == [threading.main_thread()] * 2
    assert list(workers.ahead(iter([1, 2, 3]))) == [1, 2, 3]


def test_python_ends_well_while_a_helper_is_within_a_program():
    script = """
import weakref
earlier = weakref.finalize(lambda: None, print)  # so that finalizers are called after what is registered later
import threading, time
import jax, jax.numpy as jnp
from fedprox.core.threads import Workers

program = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, a: jnp.sin(a) @ a * 1e-3, x))
x = jnp.ones((150, 150))
program(x).block_until_ready()
both = threading.Barrier(2, timeout=10)

def task(item):
    both.wait()
    if threading.current_thread() is threading.main_thread():
        raise KeyError
    end = time.monotonic() + 1
    while time.monotonic() < end:
        program(x).block_until_ready()

workers, idle = Workers(2), Workers(2)  # neither is closed
try:
    workers.run(task, [1, 2], [1, 1])
except KeyError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
