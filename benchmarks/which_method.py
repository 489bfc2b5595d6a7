"""Which method should I use? Every method of the family, tuned with the same number of runs, on the same draws.

    python -m benchmarks.which_method                             runs what is missing, prints the tables
    python -m benchmarks.which_method --data synthetic            one data set
    python -m benchmarks.which_method --no-runs                   the tables of what the cache holds
    python -m benchmarks.which_method --write docs/which-method.md     also puts the tables into the page

Synthetic(1,1), MNIST and FEMNIST with the paper's learning rates, K = 10, E = 20, 100 rounds, at 0, 50 and 90%
stragglers, over five seeds. Before that each method is tuned on each data set by four runs with a seed that is not
among the five, at 50% stragglers: its own coefficient takes four values, or the learning rate where it has none; the
lowest training loss wins, and a run that diverges is out. Test data takes no part in that.

CIFAR-10 (LeNet, 100 devices, Dirichlet(0.5), E = 5, batch 32, SGD without momentum at 0.05) has five methods, 30
rounds, 0 and 90% stragglers and one seed, and each method is tuned by three runs of 10 rounds.

A last table shows what helps SCAFFOLD with stragglers. Losses and accuracies are means over the last three measured
rounds.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks.many_runs import Cache, fill
from benchmarks.tables import heading, line, machine, read_cache, write_table
from fedprox import methods
from fedprox.config import Config, recipes, with_overrides
from fedprox.experiments.compare import variant

EVERY, TUNING_SEED, TUNED_AT = 5, 100, 0.5
RATE = ("solver.learning_rate", (0.1, 0.3, 1.0, 3.0))  # times the paper's
MU = ("method.mu", (0.01, 0.1, 1.0, 10.0))
SERVER_RATE = "method.server_learning_rate"
Coefficients = dict[str, tuple[str, tuple[float, ...]]]
METHODS: Coefficients = {
    "fedavg": RATE,
    "fedprox": MU,
    "feddane": MU,
    "sdane": ("method.mu", (0.3, 1.0, 3.0, 10.0)),
    "scaffold": RATE,
    "scaffnew": ("method.probability", (0.01, 0.03, 0.1, 0.3)),
    "fednova": RATE,
    "feddyn": ("method.alpha", (0.01, 0.1, 1.0, 10.0)),
    "fedadmm": MU,
    "fedexp": RATE,
    "fedexprox": MU,
    "fedavgm": (SERVER_RATE, (0.03, 0.1, 0.3, 1.0)),
    "fedadam": (SERVER_RATE, (0.003, 0.01, 0.03, 0.1)),
    "fedyogi": (SERVER_RATE, (0.003, 0.01, 0.03, 0.1)),
}
FEWER_RATES = ("solver.learning_rate", (0.4, 1.0, 2.0))


@dataclass(frozen=True)
class DataSet:
    """What is run on a data set: `overrides` of the recipe, and the methods with the values that tune them."""

    title: str
    recipe: str
    methods: Coefficients
    overrides: tuple[str, ...] = ()
    shares: tuple[float, ...] = (0.0, 0.5, 0.9)
    seeds: int = 5
    rounds: int = 100
    tuning_rounds: int = 100

    @property
    def learning_rate(self) -> float:
        return with_overrides(recipes.load_settings(self.recipe), self.overrides)["solver"]["learning_rate"]


DATA = {
    "synthetic": DataSet("Synthetic(1,1)", "synthetic-1-1", METHODS),
    "mnist": DataSet("MNIST", "mnist", METHODS),
    "femnist": DataSet("FEMNIST", "femnist", METHODS),
    "cifar10": DataSet(
        "CIFAR-10, LeNet, Dirichlet(0.5)",
        "cifar10-dirichlet",
        {
            "fedavg": FEWER_RATES,
            "fedprox": ("method.mu", (0.001, 0.01, 0.1)),
            "scaffold": FEWER_RATES,
            "fednova": FEWER_RATES,
            "feddyn": ("method.alpha", (0.001, 0.01, 0.1)),
        },
        ("solver.learning_rate=0.05", "solver.momentum=0.0", "solver.batch_size=32"),
        shares=(0.0, 0.9),
        seeds=1,
        rounds=30,
        tuning_rounds=10,
    ),
}
REMEDIES = {
    "as it is (E = 20, rate 0.01)": "scaffold",
    "E = 5": "scaffold:solver.epochs=5",
    "E = 1": "scaffold:solver.epochs=1",
    "learning rate 0.003": "scaffold:solver.learning_rate=0.003",
    "learning rate 0.001": "scaffold:solver.learning_rate=0.001",
    "damping 0.5": "scaffold:damping=0.5",
    "damping 0.1": "scaffold:damping=0.1",
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.which_method", description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=[*DATA], choices=[*DATA])
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "which_method.json")
    parser.add_argument("--write", type=Path, help="a page that has a place for the tables")
    parser.add_argument("--no-runs", action="store_true", help="tables of what the cache holds")
    options = parser.parse_args(arguments)
    parts: list[str] = []
    for name in options.data:
        if options.no_runs:
            cache = read_cache(options.cache)
        else:
            fill(options.cache, dict(_tuning(name)))
            cache = fill(options.cache, dict(_compared(read_cache(options.cache), name)))
        parts += _table(cache, name)
    cache = read_cache(options.cache) if options.no_runs else fill(options.cache, dict(_remedies()))
    text = "\n".join([*parts, *_remedy_table(cache)])
    print(text)
    if options.write is not None:
        made = f"Written by `python -m benchmarks.which_method` on {machine()}, {datetime.date.today()}."
        write_table(options.write, f"{text}\n\n{made}")


def _settings(name: str, text: str, stragglers: float, seed: int) -> dict[str, Any]:
    chosen = DATA[name]
    settings = with_overrides(recipes.load_settings(chosen.recipe), chosen.overrides)
    settings["method"] = {}
    rounds = chosen.tuning_rounds if seed == TUNING_SEED else chosen.rounds
    settings |= {"rounds": rounds, "seed": seed, "engine": {"workers": 1}}
    settings["measure"] = {"every": EVERY, "dissimilarity": False}
    return with_overrides(settings, [*variant(text).overrides, f"devices.stragglers={stragglers}"])


def _written(name: str, method: str, value: float) -> str:
    """Return a method with a value of its coefficient as `fedprox compare -m` takes it."""
    key, _ = DATA[name].methods[method]
    if key == RATE[0]:
        value *= DATA[name].learning_rate
    return f"{method}:{key.removeprefix('method.')}={value:g}"


def _key(name: str, text: str, stragglers: float, seed: int) -> str:
    return f"{name} {text} stragglers={stragglers:g} seed={seed}"


def _job(name: str, text: str, stragglers: float, seed: int) -> tuple[str, Callable[[], dict[str, Any]]]:
    return _key(name, text, stragglers, seed), lambda: _settings(name, text, stragglers, seed)


def _tuning(name: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for method, (_, values) in DATA[name].methods.items():
        for value in values:
            yield _job(name, _written(name, method, value), TUNED_AT, TUNING_SEED)


def _tuned(cache: Cache, name: str, method: str) -> str:
    def loss(text: str) -> float:
        run = cache[_key(name, text, TUNED_AT, TUNING_SEED)]
        return math.inf if run["loss"] is None or run["diverged"] else run["loss"]

    return min((_written(name, method, value) for value in DATA[name].methods[method][1]), key=loss)


def _compared(cache: Cache, name: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for seed in range(DATA[name].seeds):
        for method in DATA[name].methods:
            for share in DATA[name].shares:
                yield _job(name, _tuned(cache, name, method), share, seed)


def _remedies() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for text in REMEDIES.values():
        for share in DATA["synthetic"].shares:
            for seed in range(DATA["synthetic"].seeds):
                yield _job("synthetic", text, share, seed)


def _runs(cache: Cache, name: str, text: str, share: float) -> list[dict[str, Any]]:
    return [cache[key] for seed in range(DATA[name].seeds) if (key := _key(name, text, share, seed)) in cache]


def _table(cache: Cache, name: str) -> Iterator[str]:
    """Yield a table: a row for each method, with loss, accuracy, divergence and rounds at each share."""
    chosen = DATA[name]
    if not all(key in cache for key, _ in _tuning(name)):
        yield from (f"{chosen.title}: not run.", "")
        return
    baseline = _runs(cache, name, _tuned(cache, name, "fedavg"), 0.0)
    target = statistics.fmean(run["accuracy"] for run in baseline) if baseline else math.inf
    yield f"{chosen.title}. Rounds are those until FedAvg's accuracy without stragglers, {100 * target:.1f}%."
    yield ""
    columns = [f"{what}, {share:.0%}" for share in chosen.shares for what in ("loss", "accuracy", "diverged", "rounds")]
    yield from heading("method", "tuned", "kB a round", "device memory", *columns)
    for method in chosen.methods:
        text = _tuned(cache, name, method)
        cells = [cell for share in chosen.shares for cell in _cells(_runs(cache, name, text, share), target)]
        yield line(
            f"`{method}`", text.partition(":")[2], _sent(_runs(cache, name, text, 0.0)), _memory(name, method), *cells
        )
    yield ""


def _sent(runs: list[dict[str, Any]]) -> str:
    """Return the kilobytes of a round, both ways and over all its devices."""
    each = [run["bytes"] / (EVERY * (len(run["accuracies"]) - 1)) / 1000 for run in runs]
    return f"{statistics.fmean(each):,.0f}" if each else ""


def _memory(name: str, method: str) -> str:
    """Return how many numbers a device remembers, in multiples of the model's size d."""
    config = Config.from_dict(_settings(name, _written(name, method, DATA[name].methods[method][1][0]), 0.0, 0))
    size = 10_000
    remembered = methods.build(config.method, 0).start_device(jax.numpy.zeros(size))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(remembered)) // size
    return "none" if numbers == 0 else "d" if numbers == 1 else f"{numbers}d"


def _cells(runs: list[dict[str, Any]], target: float | None = None) -> list[str]:
    if not runs:
        return ["not run", *[""] * (2 if target is None else 3)]
    loss = accuracy = "not finite"
    if all(run["loss"] is not None for run in runs):
        accuracies = [100 * run["accuracy"] for run in runs]
        spread = f" ± {statistics.stdev(accuracies):.1f}" if len(runs) > 1 else ""
        loss = f"{statistics.fmean(run['loss'] for run in runs):.3f}"
        accuracy = f"{statistics.fmean(accuracies):.1f}{spread}"
    cells = [loss, accuracy, str(sum(run["diverged"] for run in runs))]
    return cells if target is None else [*cells, _rounds(runs, target)]


def _rounds(runs: list[dict[str, Any]], target: float) -> str:
    """Return the median over the seeds of the first measured round with the target's accuracy."""
    reached = [
        next((EVERY * index for index, value in enumerate(run["accuracies"]) if (value or 0.0) >= target), math.inf)
        for run in runs
    ]
    middle = statistics.median(reached)
    return "never" if middle == math.inf else f"{middle:.0f}"


def _remedy_table(cache: Cache) -> Iterator[str]:
    yield "SCAFFOLD on Synthetic(1,1)."
    yield ""
    shares = DATA["synthetic"].shares
    columns = [f"{what}, {share:.0%}" for share in shares for what in ("loss", "accuracy", "diverged")]
    yield from heading("SCAFFOLD", *columns)
    for label, text in REMEDIES.items():
        cells = [cell for share in shares for cell in _cells(_runs(cache, "synthetic", text, share))]
        yield line(label, *cells)


if __name__ == "__main__":
    main()
