"""Measure the processor time of every test: which are slow, and in which order they keep all cores busy.

    python -m pytest -n 0 -p processor_time [tests/test_x.py ...]

writes the seconds of each test function that takes at least `LEAST` (with its parameters, its fixtures and the
processes that it waits for) into processor_seconds.json. Functions that were not run keep their seconds. With
`-m "not slow"` seconds only rise: the quick tests alone compile programs that slow tests would have left to them.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked

FILE = Path(__file__).with_name("processor_seconds.json")
LEAST = 0.3


def read_seconds() -> dict[str, float]:
    """Return file::function -> processor seconds."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def function_name(item: pytest.Item) -> str:
    """Return file::function of a test, without parameters."""
    return f"{item.path.name}::{item.name.partition('[')[0]}"


def _processor_seconds() -> float:
    return sum(os.times()[:4]) + forked.processor_seconds()


class Stopwatch:
    """Adds up the processor time of this process, and of processes that have ended, by test function."""

    def __init__(self, only_rises: bool) -> None:
        self.only_rises = only_rises
        self.seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _processor_seconds()
        done = yield
        self.seconds[function_name(item)] += _processor_seconds() - before
        return done

    def pytest_sessionfinish(self) -> None:
        before = read_seconds()
        if self.only_rises:
            self.seconds = {name: max(value, before.get(name, 0.0)) for name, value in self.seconds.items()}
        kept = {name: value for name, value in before.items() if name not in self.seconds}
        found = {name: round(value, 1) for name, value in self.seconds.items() if value >= LEAST}
        FILE.write_text(json.dumps(dict(sorted((kept | found).items())), indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Start measuring, where this file is given as a plugin."""
    config.pluginmanager.register(Stopwatch(only_rises=config.option.markexpr == "not slow"))
