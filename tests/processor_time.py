"""Measure the processor time of every test: which are slow, and in which order they keep all cores busy.

    python -m pytest -n 0 -p processor_time [tests/test_x.py ...]

writes the seconds of each test function that takes at least `LEAST` (with its parameters, its fixtures and the
processes that it waits for) into processor_seconds.json, and those of each single case that takes at least `LONG`.
Functions that were not run keep their seconds. With `-m "not slow"` seconds only rise: the quick tests alone compile
programs that slow tests would have left to them.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import forked

FILE = Path(__file__).with_name("processor_seconds.json")
LEAST, LONG = 0.3, 2.0


def read_seconds() -> dict[str, float]:
    """Return file::function -> processor seconds."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def function_name(item: pytest.Item) -> str:
    """Return file::function of a test, without parameters."""
    return f"{item.path.name}::{item.name.partition('[')[0]}"


def case_name(item: pytest.Item) -> str:
    """Return file::function[case] of a test."""
    return f"{item.path.name}::{item.name}"


def seconds_of(items: Sequence[pytest.Item], unmeasured: Callable[[pytest.Item], float]) -> dict[pytest.Item, float]:
    """Return the seconds of each test; cases that are not known share alike what is left of their function's."""
    known = read_seconds()
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[function_name(item)].append(item)
    found = {}
    for function, own in cases.items():
        single = {item: known[case_name(item)] for item in own if len(own) > 1 and case_name(item) in known}
        left = max(known.get(function, unmeasured(own[0])) - sum(single.values()), 0.0)
        share = left / max(len(own) - len(single), 1)
        found |= {item: single.get(item, share) for item in own}
    return found


def _processor_seconds() -> float:
    return sum(os.times()[:4]) + forked.processor_seconds()


class Stopwatch:
    """Adds up the processor time of this process, and of processes that have ended, by test function."""

    def __init__(self, only_rises: bool) -> None:
        self.only_rises = only_rises
        self.seconds: dict[str, float] = defaultdict(float)
        self.cases: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _processor_seconds()
        done = yield
        seconds = _processor_seconds() - before
        self.seconds[function_name(item)] += seconds
        if case_name(item) != function_name(item):
            self.cases[case_name(item)] = seconds
        return done

    def pytest_sessionfinish(self) -> None:
        before = read_seconds()
        if self.only_rises:
            for found in (self.seconds, self.cases):
                found |= {name: max(value, before.get(name, 0.0)) for name, value in found.items()}
        kept = {name: value for name, value in before.items() if name not in self.seconds and name not in self.cases}
        kept |= {name: round(value, 1) for name, value in self.seconds.items() if value >= LEAST}
        kept |= {name: round(value, 1) for name, value in self.cases.items() if value >= LONG}
        FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Start measuring, where this file is given as a plugin."""
    config.pluginmanager.register(Stopwatch(only_rises=config.option.markexpr == "not slow"))
