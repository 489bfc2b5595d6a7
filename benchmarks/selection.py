"""Who is left out by each selection rule, on Synthetic(1,1) with 200 devices, K = 5, with and without a clock.

    python benchmarks/selection.py [plain|clock [ROUNDS [SEEDS]]]

Prints a row for each rule: mean and standard deviation over the seeds. *never*: devices that were never part of the
model. *lean*: the total-variation distance of the devices' weights over all rounds from p_k. *worst tenth*: the mean
test accuracy of the tenth of the devices for which it is lowest.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fedprox
from fedprox.runs.reader import load_run

RULES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "proportional": {},
    "power_of_choice": {},
    "power_of_choice, recent": {"recent": True},
    "loss": {},
    "oort": {},
    "importance": {},
    "tiers": {},
}
DEVICES = 200
CLOCK = {"model": "clock", "profile": "phones-2020"}


def measure(rule: str, systems: dict[str, Any], rounds: int, seed: int, out: Path) -> dict[str, float]:
    """Run once and return what is measured."""
    sampling = rule.partition(",")[0]
    config = {
        "seed": seed,
        "rounds": rounds,
        "data": {"devices": DEVICES},
        "method": {"mu": 1.0},
        "solver": {"epochs": 5},
        "devices": {"per_round": 5, "sampling": sampling, **RULES[rule]},
        "measure": {"every": rounds, "dissimilarity": False},
        "systems": systems,
        "engine": {"workers": 1},
    }
    result = fedprox.train(config, out=out)
    run = load_run(out)
    weight = np.zeros(DEVICES)
    for row in run.devices:
        np.add.at(weight, row["device"], row["weight"])
    samples = np.array([row["train_samples"] for row in run.evaluation])
    accuracy = np.sort([row["test_accuracy"] for row in run.evaluation if row["test_accuracy"] is not None])
    found = {
        "never": float((weight == 0).sum()),
        "lean": 50 * float(np.abs(weight / weight.sum() - samples / samples.sum()).sum()),
        "test accuracy": 100 * result.history[-1]["test_accuracy"],
        "mean over devices": 100 * float(accuracy.mean()),
        "worst tenth": 100 * float(accuracy[: max(1, len(accuracy) // 10)].mean()),
    }
    if systems:
        found["hours"] = result.history[-1]["simulated_seconds"] / 3600
    return found


def main(which: str = "", rounds: str = "200", seeds: str = "3") -> None:
    """Print both tables, or one of them."""
    for name, systems in (("plain", {}), ("clock", CLOCK)):
        if which not in ("", name):
            continue
        print(f"\n{name}, {rounds} rounds, {seeds} seeds", flush=True)
        for rule in RULES:
            if rule == "tiers" and not systems:
                continue
            with tempfile.TemporaryDirectory() as folder:
                places = [(seed, Path(folder) / str(seed)) for seed in range(int(seeds))]
                rows = [measure(rule, systems, int(rounds), *place) for place in places]
            cells = []
            for column in rows[0]:
                values = [row[column] for row in rows]
                cells.append(f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}")
            print(f"| `{rule}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
