"""What a round costs more on a Ray cluster than in one process: python -m benchmarks.ray_overhead [ROUNDS]

Two actors against two threads, ten devices per round, and a solver that returns what it was given, so that what is left
is the overhead: the broadcast, the calls, the sums coming back. Softmax regression with 610 and with a million
parameters. The engines take turns on one cluster of our own; a round is `solve_seconds` of `devices.jsonl`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import fedprox
from fedprox.engines.ray import Cluster
from fedprox.population import Population
from fedprox.solvers import opaque

WORKERS, DEVICES, SAMPLES, CLASSES, TURNS = 2, 20, 10, 10, 3


def population_of(features: int) -> Population:
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(DEVICES), SAMPLES)
    x = random.standard_normal((len(owner), features), np.float32)
    y = np.concatenate([np.arange(CLASSES), random.integers(0, CLASSES, len(owner) - CLASSES)])
    return Population.from_arrays(x, y, owner)


def idle(params: Any, x: Any, y: Any, subproblem: Any, budget: int, key: int) -> tuple[Any, int]:
    return params, 0


def rounds_of(engine: str, population: Population, rounds: int) -> list[float]:
    config = {
        "rounds": rounds,
        "measure": {"every": rounds, "dissimilarity": False},
        "engine": {"name": engine, "workers": WORKERS},
    }
    result = fedprox.train(config, population=population, solver=opaque(idle))
    return [row["solve_seconds"] for row in result.devices]


def main(rounds: int = 100) -> None:
    cluster = Cluster("", WORKERS)
    try:
        print("| parameters | local, ms | ray, ms | overhead, ms | best local, ms | best ray, ms | best overhead, ms |")
        print("|---|---|---|---|---|---|---|")
        for features, count in ((60, rounds), (99_999, max(rounds // 3, 5))):
            population = population_of(features)
            times: dict[str, list[float]] = {"local": [], "ray": []}
            for _ in range(TURNS):
                for engine in times:
                    times[engine] += rounds_of(engine, population, count)
            cells = []
            for summary in (np.median, np.min):
                local, ray = (1e3 * float(summary(times[engine])) for engine in ("local", "ray"))
                cells += [f"{local:.1f}", f"{ray:.1f}", f"{ray - local:.1f}"]
            print(f"| {(features + 1) * CLASSES:,} | {' | '.join(cells)} |", flush=True)
    finally:
        cluster.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
