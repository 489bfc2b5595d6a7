"""Threads that work side by side, and ahead."""

import threading

import pytest

from fedprox.runtime import Workers


@pytest.mark.parametrize("count", [1, 2, 3])
def test_items_come_in_order_whoever_makes_them(count):
    workers = Workers(count)
    assert list(workers.ahead(iter(range(1, 50)))) == list(range(1, 50))
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

    assert all(answer for _, answer in workers.run(busy, ["ahead", "waits"], [1, 1]))
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
