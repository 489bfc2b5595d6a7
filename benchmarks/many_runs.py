"""Many short runs in one process, which loads every data set and compiles every program once; results in a cache.

A result is one line of the cache. Only what is not there is run, and the cache is saved every half minute, so that a
benchmark can be ended at any time and continued.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.tables import read_cache, save_cache
from fedprox import data, train
from fedprox.config import Config
from fedprox.population import Population

SAVE_AFTER = 30.0  # seconds
LAST = 3  # measured rounds over which the end of a run is averaged

Cache = dict[str, dict[str, Any]]


def fill(path: Path, wanted: Mapping[str, Callable[[], dict[str, Any]]]) -> Cache:
    """Run what the cache at `path` does not hold; `wanted` maps a key to what gives the settings of its run."""
    cache = read_cache(path)
    missing = [key for key in wanted if key not in cache]
    populations: dict[str, Population] = {}
    started, saved = time.process_time(), time.monotonic()
    for number, key in enumerate(missing, start=1):
        cache[key] = _run(Config.from_dict(wanted[key]()), populations)
        if time.monotonic() - saved > SAVE_AFTER or number == len(missing):
            save_cache(path, cache)
            saved = time.monotonic()
            seconds = time.process_time() - started
            print(f"{number} of {len(missing)} runs, {seconds:.0f} s of processor time", file=sys.stderr, flush=True)
    return cache


def _run(config: Config, populations: dict[str, Population]) -> dict[str, Any]:
    name = json.dumps(config.to_dict()["data"], sort_keys=True)
    if name not in populations:
        populations[name] = data.load(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # attackers beyond a rule's bound, a method that wants all devices
        result = train(config, population=populations[name])
    rows = result.history
    losses, accuracies = rows.column("train_loss"), rows.column("test_accuracy")
    last = losses[-LAST:]
    personal = [row["personal_test_accuracy"] for row in rows if row.get("personal_test_accuracy") is not None]
    return {
        "loss": None if None in last else round(statistics.fmean(last), 5),
        "accuracy": round(statistics.fmean(value or 0.0 for value in accuracies[-LAST:]), 5),
        "diverged": result.summary["diverged_round"] is not None or result.summary["not_finite_since"] is not None,
        "bytes": result.summary["bytes"],
        "accuracies": [None if value is None else round(value, 4) for value in accuracies],
        **({"personal": round(statistics.fmean(personal[-LAST:]), 5)} if personal else {}),
    }
