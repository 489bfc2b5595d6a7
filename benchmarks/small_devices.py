"""Many small devices in a round: microseconds per device, beside the same rounds in plain C and in FedJAX.

    python -m benchmarks.small_devices [--rounds 20] [--turns 3] [--devices 2000]

A round has K = 1,000 devices with 10 samples each; softmax regression on 60 features with 10 classes, mini-batches of
10. `fedprox` is measured through `fedprox.train`, as `solve_seconds`: from sampling through mini-batch orders to the
merged model. Beside it stands the processor's time of whole rounds with a run folder, so with their records. The C loop
(`loop.c`, `solve_round`) has its mini-batches drawn beforehand. FedJAX's `for_each_client` joins where it is installed,
and is timed over all rounds. Otherwise the best round counts, and contenders take turns. What is printed is Markdown,
for `benchmarks/README.md`.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedprox
from benchmarks.peers import fedjax_rounds
from benchmarks.speed import c_library, pointer, stay_on
from fedprox.core.threads import Workers
from fedprox.participation.budget import minibatches, split_batches
from fedprox.population import Population

K, SAMPLES, FEATURES, CLASSES, BATCH, LEARNING_RATE, MU = 1000, 10, 60, 10, 10, 0.01, 1.0
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedProx": {"name": "fedprox", "mu": MU},
    "FedNova": {"name": "fednova", "mu": MU},
    "SCAFFOLD": {"name": "scaffold"},
    "FedDyn": {"name": "feddyn"},
}


def many_small(devices: int, seed: int = 0) -> Population:
    """Return devices of SAMPLES training samples each; the last one alone has a test sample beside them."""
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(devices), SAMPLES)
    owner = np.append(owner, devices - 1)
    x = random.normal(size=(len(owner), FEATURES)).astype(np.float32)
    y = (owner + random.integers(0, 2, len(owner))) % CLASSES
    return Population.from_arrays(x, y, owner, test=np.arange(len(owner)) == len(owner) - 1)


class Rounds:
    """Some rounds of one method, and the steps that they take."""

    def __init__(self, population: Population, method: str, epochs: int, rounds: int) -> None:
        self.population, self.rounds = population, rounds
        self.config: dict[str, Any] = {
            "rounds": rounds,
            "method": METHODS[method],
            "solver": {"learning_rate": LEARNING_RATE, "batch_size": BATCH, "epochs": epochs},
            "devices": {"per_round": K},
            "measure": {"every": 10**6, "dissimilarity": False},
        }
        result = fedprox.train(self.config, population=population)
        self.rows, self.final = list(result.devices), result.params
        self.steps = sum(sum(row["steps"]) for row in self.rows)

    @property
    def jobs(self) -> list[list[tuple[int, list[None], float]]]:
        """Device, a place for each step and weight, for every round, as `benchmarks.peers` takes them."""
        columns = ("device", "steps", "weight")
        return [
            [(device, [None] * steps, weight) for device, steps, weight in zip(*map(row.get, columns), strict=True)]
            for row in self.rows
        ]

    def solve_seconds(self, workers: int) -> float:
        """Return the shortest round."""
        result = fedprox.train({**self.config, "engine": {"workers": workers}}, population=self.population)
        return min(row["solve_seconds"] for row in result.devices)

    def processor_seconds(self) -> float:
        """Return the processor's time of the cheapest round, with its records in a run folder, on one core."""
        times: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            fedprox.train(
                {**self.config, "engine": {"workers": 1}, "checkpoint": {"every": 10**6}},
                population=self.population,
                out=Path(folder) / "run",
                callbacks=[lambda _: times.append(time.process_time())],
            )
        return float(np.diff(times).min())


class CRounds:
    """The rounds of FedProx in plain C, with mini-batches that are drawn beforehand."""

    def __init__(self, work: Rounds, epochs: int) -> None:
        self._solve = c_library().solve_round
        self._work = work
        train = work.population.train
        self._x, self._y = np.ascontiguousarray(train.x, np.float32), train.y.astype(np.int32)
        self._rounds = []
        for row in work.rows:
            orders = []
            for device in row["device"]:
                draw = {"seed": 0, "round": row["round"], "device": device, "piece": epochs}
                pieces = minibatches(SAMPLES, BATCH, epochs, **draw)
                batches = [batch for piece in pieces for batch in split_batches(piece, SAMPLES)]
                orders.append(np.concatenate(batches) + int(train.offsets[device]))
            self._rounds.append((np.array(orders, np.int32), np.array(row["weight"], np.float32)))
        self._epochs = epochs

    def seconds(self, workers: int) -> float:
        """Return the shortest round."""
        weight, bias = np.zeros((CLASSES, FEATURES), np.float32), np.zeros(CLASSES, np.float32)
        threads, times = Workers(workers), []
        for orders, shares in self._rounds:
            begin = time.perf_counter()
            bounds = np.linspace(0, K, workers + 1).astype(int)
            parts = list(itertools.pairwise(bounds.tolist()))
            given = (orders, shares, weight, bias)
            found = threads.run(lambda part, given=given: self._part(*part, *given), parts, [1] * workers)
            weight, bias = (sum(each) for each in zip(*found, strict=True))  # type: ignore[assignment]
            times.append(time.perf_counter() - begin)
        threads.close()
        np.testing.assert_allclose(weight, self._work.final["weight"], rtol=2e-3, atol=2e-5)
        return min(times)

    def _part(
        self, first: int, last: int, orders: NDArray[np.int32], shares: NDArray[np.float32], weight: Any, bias: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        merged_weight, merged_bias = np.zeros_like(weight), np.zeros_like(bias)
        scratch = np.empty(2 * (CLASSES * FEATURES + CLASSES), np.float32)
        own = np.ascontiguousarray(orders[first:last]), np.ascontiguousarray(shares[first:last])
        self._solve(
            pointer(self._x), pointer(self._y), pointer(own[0]), pointer(own[1]),
            last - first, self._epochs, BATCH, FEATURES, CLASSES,
            ctypes.c_float(LEARNING_RATE), ctypes.c_float(MU), pointer(weight), pointer(bias),
            pointer(merged_weight), pointer(merged_bias), pointer(scratch),
        )  # fmt: skip
        return merged_weight, merged_bias


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.small_devices", description="Microseconds per device.")
    options.add_argument("--rounds", type=int, default=20, help="rounds of each run (default 20)")
    options.add_argument("--turns", type=int, default=3, help="turns of each contender (default 3)")
    options.add_argument("--devices", type=int, default=2000, help="devices of the population (default 2000)")
    chosen = options.parse_args()
    population = many_small(chosen.devices)
    everywhere = os.sched_getaffinity(0)

    def per_device(seconds: float) -> str:
        return f"{seconds / K * 1e6:.1f}"

    print("| method | epochs | one core, us per device | two cores | speed-up | processor, with records |")
    print("|---|---|---|---|---|---|")
    measured: dict[int, Rounds] = {}
    for epochs in (1, 5):
        for name in METHODS:
            work = Rounds(population, name, epochs, chosen.rounds)
            one, two, processor = np.inf, np.inf, np.inf
            for _ in range(chosen.turns):
                stay_on({min(everywhere)})
                one, processor = min(one, work.solve_seconds(1)), min(processor, work.processor_seconds())
                stay_on(everywhere)
                two = min(two, work.solve_seconds(2))
            cells = [name, epochs, per_device(one), per_device(two), f"{one / two:.2f}", per_device(processor)]
            print("| " + " | ".join(map(str, cells)) + " |")
            if name == "FedProx":
                measured[epochs] = work
    print("\n| beside it, FedProx | epochs | one core, us per device | two cores | speed-up |")
    print("|---|---|---|---|---|")
    for epochs, work in measured.items():
        loop = CRounds(work, epochs)
        one, two = np.inf, np.inf
        for _ in range(chosen.turns):
            stay_on({min(everywhere)})
            one = min(one, loop.seconds(1))
            stay_on(everywhere)
            two = min(two, loop.seconds(2))
        print(f"| C, orders drawn beforehand | {epochs} | {per_device(one)} | {per_device(two)} | {one / two:.2f} |")
        stay_on({min(everywhere)})
        run = fedjax_rounds(work)  # type: ignore[arg-type]
        if run is not None:  # it is timed over all rounds
            print(f"| FedJAX | {epochs} | {per_device(min(run()[0] for _ in range(2)) / work.rounds)} | | |")
        stay_on(everywhere)


if __name__ == "__main__":
    main()
