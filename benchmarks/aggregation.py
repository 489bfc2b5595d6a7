"""What a server does with the replies of one round: replies per second, and memory, as their number grows.

    python -m benchmarks.aggregation [--replies 100 1000 10000] [--parameters 1000000]

A reply is a model of float32 numbers that comes in as bytes: a copy of one of a few buffers, so that nothing is spent
on making up numbers. Four ways to add them up, each in a process of its own, on one core:

    tree, in order         TreeSum; replies are taken in the order of their positions
    tree, window           TreeSum; at most 64 are asked for at once, and answer in random order
    tree, random           TreeSum; all are asked for at once, and answer in random order
    fixed point, random    FixedPointSum; the same

Then, for populations of 10^4, 10^6 and 10^8 devices of which one in a hundred takes part, the time to draw the chosen
ones; and the time to merge two totals in fixed point, as a server above other servers does.

Memory is the growth of the process's peak over what it held before the first reply, in units of one reply; `held` is
the largest number of partial sums at once. Seconds are the processor's, the best of several passes; the whole random
tree would not fit into memory, so beyond `LARGEST_RANDOM` replies its partial sums are only counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fedprox.config.parts import builtin_names
from fedprox.core.fixed_point import FixedPointSum
from fedprox.core.trees import TreeSum, scale
from fedprox.participation.sampling import draw_cohort

WINDOW, BUFFERS, LARGEST_RANDOM = 64, 8, 1000
WAYS = ("tree, in order", "tree, window", "tree, random", "fixed point, random")


def arrivals(way: str, replies: int, seed: int = 0) -> Iterator[int]:
    """Yield positions in the order in which their replies arrive."""
    if way == "tree, in order":
        yield from range(replies)
        return
    random = np.random.default_rng(seed)
    if not way.endswith("window"):
        yield from random.permutation(replies).tolist()
        return
    outstanding = list(range(min(WINDOW, replies)))
    for asked in range(len(outstanding), replies + len(outstanding)):
        yield outstanding.pop(int(random.integers(len(outstanding))))
        if asked < replies:
            outstanding.append(asked)


def held(way: str, replies: int) -> int:
    """Return the largest number of partial sums that a tree holds at once."""
    total, most = TreeSum(replies), 0
    for position in arrivals(way, replies):
        total.add(position, np.float32(0))
        most = max(most, len(total._nodes))
    return most


def measure(way: str, replies: int, parameters: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    buffers = [random.normal(size=parameters).astype(np.float32) for _ in range(BUFFERS)]
    order = list(arrivals(way, replies))
    weight = 1 / replies
    before = _memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    wall, clock = time.perf_counter(), time.process_time()
    result = _add_up(way, order, buffers, weight)
    seconds, wall = time.process_time() - clock, time.perf_counter() - wall
    expected = sum(np.float64(len(range(i, replies, BUFFERS))) * buffers[i][:100] for i in range(BUFFERS)) / replies
    worst = float(np.abs(result[:100] - expected).max())
    return {"seconds": seconds, "wall": wall, "peak_mb": _memory_mb("VmHWM") - before, "error": worst}


def _add_up(way: str, order: list[int], buffers: list[np.ndarray], weight: float) -> np.ndarray:
    if way.startswith("fixed"):
        running = FixedPointSum(like=buffers[0])
        for position in order:
            running.add(buffers[position % BUFFERS].copy(), weight)
        return running.result()
    total = TreeSum(len(order))
    for position in order:
        total.add(position, scale(buffers[position % BUFFERS].copy(), weight))
    return total.result()


def _memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def sampling_and_merging(parameters: int) -> None:
    print("\n| devices | chosen | uniform, ms | proportional, ms |\n|---|---|---|---|")
    for devices in (10**4, 10**6, 10**8):
        offsets = np.arange(devices + 1, dtype=np.int64) * 10
        chosen = devices // 100
        times = [
            _best(partial(draw_cohort, scheme, chosen, offsets, seed=0, round=1), passes=3)
            for scheme in builtin_names("samplers")
        ]
        print(f"| {devices:,} | {chosen:,} | {1e3 * times[0]:,.2f} | {1e3 * times[1]:,.2f} |")
    reply = np.ones(parameters, np.float32)
    first, second = (FixedPointSum(like=reply) for _ in range(2))
    second.add(reply, 1e-6)
    print(f"\nmerging two totals: {1e3 * _best(lambda: first.merge(second), passes=20):.2f} ms")


def _best(work: Callable[[], object], passes: int) -> float:
    times = []
    for _ in range(passes):
        clock = time.process_time()
        work()
        times.append(time.process_time() - clock)
    return min(times)


def in_own_process(way: str, replies: int, parameters: int, passes: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(passes):
        command = [sys.executable, "-m", "benchmarks.aggregation", "--one", way]
        command += ["--replies", str(replies), "--parameters", str(parameters)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        best = found if not best or found["seconds"] < best["seconds"] else best
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--one", choices=WAYS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.replies[0], options.parameters)))
        return
    reply_mb = 4 * options.parameters / 2**20
    print("| way | replies | replies per second | wall | memory MB | in replies | held | largest error |")
    print("|---|---|---|---|---|---|---|---|")
    for way in WAYS:
        for replies in options.replies:
            count = "-" if way.startswith("fixed") else f"{held(way, replies):,}"
            if way == "tree, random" and replies > LARGEST_RANDOM:
                print(f"| {way} | {replies:,} | - | - | - | - | {count} | - |", flush=True)
                continue
            found = in_own_process(way, replies, options.parameters, passes=1 if replies >= 10_000 else 3)
            print(
                f"| {way} | {replies:,} | {replies / found['seconds']:,.0f} | {replies / found['wall']:,.0f} "
                f"| {found['peak_mb']:,.1f} | {found['peak_mb'] / reply_mb:,.1f} | {count} | {found['error']:.1e} |",
                flush=True,
            )
    sampling_and_merging(options.parameters)


if __name__ == "__main__":
    main()
