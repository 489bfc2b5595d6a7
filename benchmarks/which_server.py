"""Which server for which fleet: every server on several fleets, and the tables of docs/which-server.md.

    python -m benchmarks.which_server                                runs what is missing, prints the tables
    python -m benchmarks.which_server --data mnist --fleets phones   a part of it
    python -m benchmarks.which_server --minutes 10                   ends after that time; a later call continues
    python -m benchmarks.which_server --no-runs --write docs/which-server.md

Synthetic(1,1) with 300 devices and MNIST with 1,000, learning rates of the paper, K = 10, 20 epochs, three seeds.
Servers with the same data, fleet, method and seed have the same draws. The synchronous server runs once with the
default deadline and once without one. Every run makes about as many local solves, merged or not. On `phones-2020` the
devices with three of the ten labels are rarely there. The asynchronous server is measured at every tenth version, but
for `drift`, which needs the loss of each; the others at each.

*best* is the one of mu = 0.1 and 1 with the lowest training loss at the end, chosen for each server and fleet.
The target of a table is nine tenths of the highest accuracy in it, a mean over the seeds, as a whole percentage.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tables import Cache, heading, line, machine, read_cache, save_cache, write_table
from fedprox import data, train
from fedprox.config import Config
from fedprox.population import Population
from fedprox.runs.reader import SavedRun, load_run

DATA: dict[str, dict[str, Any]] = {
    "synthetic": {"data": {"devices": 300}, "solver": {"learning_rate": 0.01}},
    "mnist": {"data": {"name": "mnist"}, "solver": {"learning_rate": 0.03}},
}
TITLES = {"synthetic": "Synthetic(1,1)", "mnist": "MNIST"}
FLEETS: dict[str, dict[str, Any]] = {
    "equal": {"profile": "equal"},
    "phones": {"profile": "phones"},
    "phones-2020": {"profile": "phones-2020", "rare_labels": [7, 8, 9], "rare_by": 2.0},
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
MUS = (1.0, 0.1)
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedprox mu=0": {"mu": 0.0},
    "fedprox mu=drift": {"mu": "drift"},
    **{f"fedprox mu={mu:g}": {"mu": mu} for mu in MUS},
}
ROWS = {"FedAvg": "fedavg", "FedProx, mu = 0": "fedprox mu=0", "best": "best", "drift": "fedprox mu=drift"}


class Cell(NamedTuple):
    """What a run is of."""

    data: str
    fleet: str
    server: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.data} | {self.fleet} | {self.server} | {self.method} | seed={self.seed}"

    def settings(self) -> dict[str, Any]:
        systems = {"model": "clock", **FLEETS[self.fleet], **SERVERS[self.server]}
        per_version = {"over_selection": 13, "asynchronous": 1}.get(systems.get("server", ""), K)
        every = K if per_version == 1 and METHODS[self.method].get("mu") != "drift" else 1
        seeded = {"seed": self.seed} if self.data == "synthetic" else {}  # MNIST is divided into devices once
        return {
            "seed": self.seed,
            "rounds": SOLVES // per_version,
            "data": {**DATA[self.data]["data"], **seeded},
            "solver": DATA[self.data]["solver"],
            "method": METHODS[self.method],
            "devices": {"per_round": K},
            "systems": systems,
            "measure": {"every": every, "dissimilarity": False},
            "checkpoint": {"every": SOLVES},
            "engine": {"workers": 1},
        }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.which_server", description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=[*DATA], choices=[*DATA])
    parser.add_argument("--fleets", nargs="*", default=[*FLEETS], choices=[*FLEETS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "which_server.json")
    parser.add_argument("--write", type=Path, help="a page that has a place for the tables")
    parser.add_argument("--no-runs", action="store_true", help="tables of what the cache holds")
    options = parser.parse_args(arguments)
    if not options.no_runs:
        _fill(options.cache, list(_cells(options.data, options.fleets, options.seeds)), options.minutes)
    cache = read_cache(options.cache)
    tables = [_table(cache, name, fleet, options.seeds) for name in options.data for fleet in options.fleets]
    text = "\n".join(itertools.chain.from_iterable(tables))
    print(text)
    if options.write is not None:
        made = f"Written by `python -m benchmarks.which_server` on {machine()}, {datetime.date.today()}."
        write_table(options.write, f"{text}\n{made}")


def _cells(names: list[str], fleets: list[str], seeds: int) -> Iterator[Cell]:
    """Yield all cells; those with the last value of mu last, and those with the first seed first."""
    for methods in ([*METHODS][:-1], [*METHODS][-1:]):
        for seed in range(seeds):
            for cell in itertools.product(names, fleets, SERVERS, methods):
                yield Cell(*cell, seed)


def _fill(path: Path, cells: list[Cell], minutes: float) -> None:
    """Run what the cache does not hold, until the time is over."""
    ends, populations = time.monotonic() + 60 * minutes, dict[str, Population]()
    for cell in cells:
        if time.monotonic() > ends:
            return
        if cell.key in (cache := read_cache(path)):
            continue
        config = Config.of(cell.settings())
        which = str(config.to_dict()["data"])
        if which not in populations:
            populations[which] = data.load(config)
        started = time.process_time()
        save_cache(path, {**cache, cell.key: _run(config, populations[which])})
        print(f"{cell.key}: {time.process_time() - started:.1f} s", file=sys.stderr, flush=True)


def _run(config: Config, population: Population) -> dict[str, Any]:
    """Run once and return what the tables need."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train(config, population=population, out=out)
        return _summary(load_run(out))


def _summary(run: SavedRun) -> dict[str, Any]:
    accuracies = sorted(row["test_accuracy"] for row in run.evaluation if row["test_accuracy"] is not None)
    return {
        "loss": run.last["train_loss"] and round(run.last["train_loss"], 5),
        "accuracy": round(run.last["test_accuracy"], 5),
        "worst": round(statistics.fmean(accuracies[: max(1, -(-len(accuracies) // 10))]), 5),
        "seconds": round(run.last["simulated_seconds"], 1),
        "bytes": run.last["bytes"],
        "wasted": round(run.last["wasted_seconds"] / sum(sum(row["seconds"]) for row in run.devices), 4),
        "curve": _rises(run.history[1:]),
    }


def _rises(rows: list[dict[str, Any]]) -> list[list[float]]:
    """Return accuracy, simulated seconds and bytes of each round with a higher accuracy than all before it."""
    rises, best = list[list[float]](), 0.0
    for row in rows:
        if row["test_accuracy"] > best:
            best = row["test_accuracy"]
            rises.append([round(best, 4), round(row["simulated_seconds"], 1), row["bytes"]])
    return rises


def _table(cache: Cache, name: str, fleet: str, seeds: int) -> Iterator[str]:
    """Yield the table of a data set and a fleet; nothing where runs are missing."""
    found: dict[tuple[str, str], tuple[str, list[dict[str, Any]]]] = {}
    for server, (label, method) in itertools.product(SERVERS, ROWS.items()):
        candidates = [f"fedprox mu={mu:g}" for mu in MUS] if method == "best" else [method]
        runs = {each: _runs(cache, name, fleet, server, each, seeds) for each in candidates}
        if not all(runs.values()):
            return
        chosen = min(runs, key=lambda each: statistics.fmean(run["loss"] or math.inf for run in runs[each]))
        shown = {"best": f"FedProx, mu = {chosen[11:]} (best)", "drift": "FedProx, mu = drift"}.get(label, label)
        found[server, label] = shown, runs[chosen]
    best = max(statistics.fmean(run["accuracy"] for run in runs) for _, runs in found.values())
    target = math.floor(90 * best) / 100
    yield f"**{TITLES[name]}, {fleet}**"
    yield ""
    yield from heading(
        "server",
        "method",
        f"seconds to {target:.0%}",
        f"MB to {target:.0%}",
        "whole run, s",
        "wasted",
        "test accuracy",
        "worst tenth",
    )
    for (server, _), (shown, runs) in found.items():
        yield line(server, shown, *_to_target(runs, target), *_ends(runs))
    yield ""


def _runs(cache: Cache, name: str, fleet: str, server: str, method: str, seeds: int) -> list[dict[str, Any]]:
    keys = [Cell(name, fleet, server, method, seed).key for seed in range(seeds)]
    return [cache[key] for key in keys] if all(key in cache for key in keys) else []


def _to_target(runs: list[dict[str, Any]], target: float) -> tuple[str, str]:
    """Return the mean seconds and megabytes until the target, over the runs that reach it."""
    first = [next((point for point in run["curve"] if point[0] >= target), None) for run in runs]
    reached = [point for point in first if point is not None]
    if not reached:
        return "never", ""
    share = "" if len(reached) == len(runs) else f" ({len(reached)} of {len(runs)})"
    seconds, sent = (statistics.fmean(point[index] for point in reached) for index in (1, 2))
    return f"{seconds:,.0f}{share}", f"{sent / 1e6:.2f}"


def _ends(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    mean = {key: statistics.fmean(run[key] for run in runs) for key in ("seconds", "wasted", "accuracy", "worst")}
    spread = statistics.stdev(run["accuracy"] for run in runs) if len(runs) > 1 else 0.0
    return (
        f"{mean['seconds']:,.0f}",
        f"{mean['wasted']:.0%}",
        f"{100 * mean['accuracy']:.1f} ± {100 * spread:.1f}",
        f"{100 * mean['worst']:.1f}",
    )


if __name__ == "__main__":
    main()
