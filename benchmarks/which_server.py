"""Which server for which fleet: runs of every server on several fleets, and the table of docs/which-server.md.

    python benchmarks/which_server.py run RUNS [--seeds 3]    # writes a run folder for each cell; what is there stays
    python benchmarks/which_server.py table RUNS              # prints the tables as Markdown

Synthetic(1, 1) with 30 devices, K = 10, 20 epochs. Servers with the same fleet, method and seed have the same draws.
The synchronous server runs once with the default deadline and once without one. Every run makes about as many local
solves, 400, merged or not. The target of a table is the highest whole percentage that all of its runs reach. The
asynchronous server is measured with every tenth version, the others with each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedprox
from fedprox.report.target_section import common_target
from fedprox.runs.reader import SavedRun
from fedprox.runs.seed_groups import group_runs

FLEETS = ("phones", "equal")
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedProx, mu = 1": {"mu": 1.0},
    "FedProx, mu = 0": {"mu": 0.0},
}
SOLVES, K = 400, 10
AT_WORK = {"concurrency": 20}
SERVERS: dict[str, dict[str, Any]] = {
    "synchronous, q0.8": {"deadline": "q0.8"},
    "synchronous, no deadline": {"deadline": "q1"},
    "over_selection 1.3": {"server": "over_selection", "deadline": "q1"},
    "buffered, 10 of 20": {"server": "buffered", "buffer": 10, **AT_WORK},
    "asynchronous, 20": {"server": "asynchronous", **AT_WORK},
}


def settings(server: str, fleet: str, method: str, seed: int) -> dict[str, Any]:
    """Return the config of a cell."""
    systems = SERVERS[server]
    per_version = {"over_selection": 13, "asynchronous": 1}.get(systems.get("server", ""), K)
    return {
        "seed": seed,
        "data": {"seed": seed},
        "rounds": SOLVES // per_version,
        "method": METHODS[method],
        "devices": {"per_round": K},
        "systems": {"model": "clock", "profile": fleet, **systems},
        "measure": {"every": K if per_version == 1 else 1, "dissimilarity": False},
        "checkpoint": {"every": 100},
    }


def cells(seeds: int) -> Iterator[tuple[str, str, str, int]]:
    """Yield server, fleet, method and seed; the first seed of all cells first."""
    for seed in range(seeds):
        for fleet in FLEETS:
            for method in METHODS:
                for server in SERVERS:
                    yield server, fleet, method, seed


def folder(runs: Path, server: str, fleet: str, method: str, seed: int) -> Path:
    """Return the run folder of a cell."""
    name = f"{fleet}--{method}--{server}--{seed}".lower()
    return runs / "".join(each if each.isalnum() or each in "-." else "_" for each in name)


def seconds_to(run: SavedRun, target: float) -> float | None:
    """Return the simulated seconds at which a run first has the target accuracy; None where it never has."""
    found = (row["simulated_seconds"] for row in run.history[1:] if (row["test_accuracy"] or 0) >= target)
    return next(found, None)


def worst_decile(run: SavedRun) -> float:
    """Return the mean test accuracy of the tenth of the devices that the final model serves worst."""
    accuracies = np.sort([row["test_accuracy"] for row in run.evaluation if row["test_accuracy"] is not None])
    return float(accuracies[: max(1, -(-len(accuracies) // 10))].mean())


def line(server: str, runs: list[SavedRun], target: float) -> str:
    """Return a row of a table: means over the seeds."""
    times = [seconds_to(run, target) for run in runs]
    reached = [each for each in times if each is not None]
    time = "never" if not reached else f"{np.mean(reached):,.0f} s"
    if 0 < len(reached) < len(times):
        time += f" ({len(reached)} of {len(times)})"

    def mean(name: str) -> float:
        return float(np.mean([run.last[name] or 0.0 for run in runs]))

    worked = [sum(sum(row["seconds"]) for row in run.devices) for run in runs]
    wasted = np.mean([run.last["wasted_seconds"] / spent for run, spent in zip(runs, worked, strict=True)])
    columns = [
        server,
        time,
        f"{mean('simulated_seconds'):,.0f} s",
        f"{mean('bytes') / 1e6:.1f}",
        f"{wasted:.0%}",
        f"{mean('test_accuracy'):.1%}",
        f"{np.mean([worst_decile(run) for run in runs]):.1%}",
    ]
    return "| " + " | ".join(columns) + " |"


def tables(runs: Path) -> Iterator[str]:
    """Yield the lines of all tables."""
    seeds = 1 + max(int(path.name.rsplit("--", 1)[1]) for path in runs.iterdir() if path.is_dir())
    for fleet in FLEETS:
        for method in METHODS:
            found = {server: list(_finished(runs, server, fleet, method, seeds)) for server in SERVERS}
            if not all(found.values()):
                continue
            target = common_target(group_runs([run for each in found.values() for run in each])) or 0.0
            yield f"\n**{fleet}, {method}**\n"
            yield f"| server | time to {target:.0%} | whole run | MB | wasted | test accuracy | worst tenth |"
            yield "|---|---|---|---|---|---|---|"
            for server, each in found.items():
                yield line(server, each, target) + ("" if len(each) == seeds else f" of {len(each)} seeds")


def _finished(runs: Path, server: str, fleet: str, method: str, seeds: int) -> Iterator[SavedRun]:
    for seed in range(seeds):
        path = folder(runs, server, fleet, method, seed)
        if (path / "summary.json").exists():
            yield fedprox.load_run(path)


def main() -> None:
    """Run, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.what == "table":
        print("\n".join(tables(given.runs)))
        return
    for cell in cells(given.seeds):
        path = folder(given.runs, *cell)
        if not (path / "summary.json").exists():
            result = fedprox.train(settings(*cell), out=path, resume=path.exists())
            print(*cell, result, flush=True)


if __name__ == "__main__":
    main()
