"""What an event costs: the time line alone, and whole runs of a tiny model.

    python benchmarks/event_queue.py            # the time line alone, without models
    python benchmarks/event_queue.py runs       # whole runs: time line, local solves, merges and records
    python benchmarks/event_queue.py million    # a million replies with `equal` and with `phones`, a buffer of 100

An event is a reply: it leaves the queue, its place is given to the next candidate, and the buffer takes it. The time
line is followed for a trace, whose devices need no draws, and for `equal` and `phones`, where drawing what a
device is takes most of the time; sample counts differ. A run has devices of ten
samples, one local step each, and softmax regression with 30 parameters; it is measured at its end alone. Times are
processor time, with one worker; the first tenth of a run, in which programs are compiled, does not count.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import fedprox
from fedprox.config import Config
from fedprox.participation.clock import build_clock
from fedprox.participation.clock.timeline import Timeline
from fedprox.participation.traffic import Traffic

DEVICES = 20_000


def follow(profile: str, concurrency: int, buffer: int, replies: int) -> float:
    """Return the microseconds of a reply in the time line alone."""
    device = np.repeat(np.arange(DEVICES), np.random.default_rng(0).integers(5, 50, DEVICES))
    nothing = np.zeros(len(device), np.int32)
    x = nothing[:, None].astype(np.float32)
    population = fedprox.Population.from_arrays(x, nothing, device, test=np.zeros(len(device), bool))
    systems = {"model": "clock", "server": "buffered", "concurrency": concurrency, "buffer": buffer}
    with tempfile.TemporaryDirectory() as folder:
        if profile == "trace":
            rates = {"samples_per_second": 100.0, "download_bytes_per_second": 1e6, "upload_bytes_per_second": 1e6}
            trace = Path(folder) / "trace.jsonl"
            trace.write_text("".join(json.dumps(rates) + "\n" for _ in range(DEVICES)))
        named = {"trace": str(Path(folder) / "trace.jsonl")} if profile == "trace" else {"profile": profile}
        config = Config.of({"systems": {**systems, **named}, "solver": {"epochs": 1}})
        clock = build_clock(config, population, Traffic(1000, 1000))
    assert clock is not None
    timeline = Timeline(clock, population.train.offsets, lambda work: ~work.straggler, concurrency, buffer)
    timeline.next_merge()  # asks all that fit at once
    started = time.process_time()
    done = 0
    while done < replies:
        done += len(timeline.next_merge().ended)
    return (time.process_time() - started) / done * 1e6


def run(server: str, concurrency: int, buffer: int, replies: int, profile: str = "phones") -> float:
    """Return the microseconds of a reply in a run, all in all but for compilation and what precedes the first round."""
    random = np.random.default_rng(0)
    device = np.repeat(np.arange(DEVICES), 10)
    x = random.normal(size=(len(device), 5)).astype(np.float32)
    y = (x @ random.normal(size=(5, 5))).argmax(axis=1)
    population = fedprox.Population.from_arrays(x, y, device, test=np.zeros(len(device), bool))
    rounds = replies // buffer
    keys = {"buffer": buffer} if server == "buffered" else {}
    systems = {"model": "clock", "profile": profile, "server": server, "concurrency": concurrency, **keys}
    settings = {
        "rounds": rounds,
        "solver": {"epochs": 1, "learning_rate": 0.1},
        "systems": systems,
        "measure": {"every": rounds, "dissimilarity": False},
        "checkpoint": {"every": rounds},
        "engine": {"workers": 1},
    }
    moments: list[float] = []
    fedprox.train(settings, population=population, callbacks=[lambda progress: moments.append(time.process_time())])
    first, last = max(1, rounds // 10), len(moments) - 2  # the last moment is after measuring
    return (moments[last] - moments[first]) / ((last - first) * buffer) * 1e6


def main() -> None:
    """Print a line for each setting."""
    if sys.argv[1:] == ["million"]:
        for profile in ("equal", "phones"):
            print(f"{profile}: {run('buffered', 1000, 100, 1_000_000, profile):.1f} us per reply", flush=True)
        return
    if sys.argv[1:] == ["runs"]:
        cases = [("buffered", 1000, 100, 40_000), ("buffered", 100, 10, 10_000), ("asynchronous", 100, 1, 2_000)]
        for server, concurrency, buffer, replies in cases:
            spent = run(server, concurrency, buffer, replies)
            print(
                f"{server:13} {concurrency:5} at work, buffer {buffer:4}, {replies} replies: {spent:7.1f} us per reply"
            )
        return
    for profile in ("trace", "equal", "phones"):
        for concurrency, buffer in ((1000, 100), (100, 10), (100, 1)):
            spent = follow(profile, concurrency, buffer, 20_000 if buffer > 1 else 5_000)
            print(f"{profile:7} {concurrency:5} at work, buffer {buffer:4}: {spent:6.1f} us per event")


if __name__ == "__main__":
    main()
