"""How cost grows with the number of devices: it does not.

    python -m benchmarks.scale [--largest 1000000]

For N devices, each in a process of its own: the time to open the population and the memory it takes, then the time of
a round with 100 chosen devices under uniform and proportional sampling, and of measuring 100 devices. For sampling
alone N goes to 10^7. Times are the best of many rounds in several passes over all N, on one core: what else runs on
the machine can only add to them; those of a round are the processor's. All devices have the same size, so rounds
differ only by which are drawn; where one is drawn twice the time is scaled to 100 different ones. Private memory is
what belongs to the process alone after training; the mapped pages of the data belong to the system's cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PASSES, ROUNDS, CHOSEN, SAMPLES, FEATURES = 4, 40, 100, 10, 60


def write(path: Path, devices: int) -> None:
    from fedprox.population import Samples
    from fedprox.population.writer import PopulationWriter

    random = np.random.default_rng(0)
    block = min(devices, 20_000)
    x = random.normal(size=(block * SAMPLES, FEATURES)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    train = Samples(x, y, np.arange(block + 1) * SAMPLES)
    test = Samples(x[:block], y[:block], np.arange(block + 1))
    with PopulationWriter(path, classes=10) as writer:
        for begin in range(0, devices, block):
            writer.add_block([f"device-{begin + k}" for k in range(block)], train, test)


def measure(path: str) -> dict[str, float]:
    """Open and train; runs in a process of its own so that memory is this population's alone."""
    from fedprox.population.folder import open_population

    before, clock = _memory(), time.perf_counter()
    population = open_population(path)
    result = {"devices": population.devices, "open_seconds": time.perf_counter() - clock}
    result["open_mb"] = _memory() - before
    from fedprox.training.train import train

    for sampling in ("uniform", "proportional"):
        processor: list[float] = []
        clock = time.perf_counter()
        run = train(
            {
                "rounds": ROUNDS,
                "devices": {"per_round": CHOSEN, "sampling": sampling},
                "measure": {"devices": CHOSEN, "every": ROUNDS},
                "solver": {"epochs": 5},
                "checkpoint": {"every": 10**6},
                "engine": {"workers": 1},
            },
            population=population,
            callbacks=[lambda _, seen=processor: seen.append(time.process_time())],
        )
        whole = time.perf_counter() - clock
        solves = [row["solve_seconds"] for row in run.devices]
        measures = [row["measure_seconds"] for row in run.history]
        listed = np.array([len(row["device"]) for row in run.devices])  # fewer where a device is drawn twice
        result[f"{sampling}_ms"] = 1e3 * float((np.diff(processor) * CHOSEN / listed)[:-1].min())
        result[f"{sampling}_wall_ms"] = 1e3 * min(solves)
        result[f"{sampling}_measure_ms"] = 1e3 * min(measures)
        result[f"{sampling}_start_seconds"] = whole - sum(solves) - sum(measures) - run.summary["compile_seconds"]
    result["private_mb"] = _memory("RssAnon")
    return result


def sampling_alone(devices: int) -> dict[str, float]:
    from fedprox.participation.sampling import draw_cohort

    offsets = np.arange(devices + 1, dtype=np.int64) * SAMPLES
    result: dict[str, float] = {"devices": devices}
    for scheme in ("uniform", "proportional"):
        times = []
        for round in range(1, 301):
            clock = time.perf_counter()
            draw_cohort(scheme, CHOSEN, offsets, seed=0, round=round)
            times.append(time.perf_counter() - clock)
        result[scheme] = 1e6 * float(np.median(times))
    return result


def _memory(field: str = "VmRSS") -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=10**6)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    scales = [10**power for power in range(3, 8) if 10**power <= arguments.largest]
    best: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for devices in scales:
            write(Path(folder) / str(devices), devices)
        for devices in scales * PASSES:
            command = [sys.executable, "-m", "benchmarks.scale", "--measure", f"{folder}/{devices}"]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(answer.stdout.splitlines()[-1])
            before = best.setdefault(devices, found)
            best[devices] = {name: min(value, before[name]) for name, value in found.items()}
    rows = list(best.values())
    print("| devices | open ms | open MB | uniform ms | proportional ms | measuring 100 ms | start s | private MB |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['devices']:,} | {1e3 * row['open_seconds']:.1f} | {row['open_mb']:.1f} | {row['uniform_ms']:.2f} "
            f"| {row['proportional_ms']:.2f} | {row['uniform_measure_ms']:.2f} | {row['uniform_start_seconds']:.2f} "
            f"| {row['private_mb']:.0f} |"
        )
    for scheme in ("uniform", "proportional"):
        times = [row[f"{scheme}_ms"] for row in rows]
        print(f"\na round, {scheme}: {times[-1] / times[0]:.2f} times as long with {rows[-1]['devices']:,} devices")
    print("\n| devices | uniform draw us | proportional draw us |")
    print("|---|---|---|")
    for devices in (10**3, 10**4, 10**5, 10**6, 10**7):
        row = sampling_alone(devices)
        print(f"| {devices:,} | {row['uniform']:.0f} | {row['proportional']:.0f} |")


if __name__ == "__main__":
    main()
