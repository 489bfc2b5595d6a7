"""The rules `drift` and `adaptive` for mu in settings that the design of `drift` has not seen, beside constants.

    python -m benchmarks.held_out_mu                                   runs what is missing, prints the table
    python -m benchmarks.held_out_mu --settings full-1-1 rate-times-3  some of the settings
    python -m benchmarks.held_out_mu --write docs/choosing-mu.md       runs nothing; puts the table into the page

Every setting runs with all constants and both rules on the same draws, with seeds 2 and 3 (of generated data also
`data.seed`). `auto` is one of the two rules in every setting, so that it needs no runs of its own; it was chosen by
these seeds, and the settings without networks are run with seeds 4 and 5 as well. The criterion is on the page. A run
is one line of the cache, and only what is not there is run. A setting is judged by the seeds whose runs are all there.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Cache, heading, line, machine, read_cache, save_cache, write_table
from fedprox import data, train
from fedprox.config import Config
from fedprox.methods.mu.auto import DRIFT_FROM
from fedprox.population import Population

CONSTANTS, RULES, LAST = ("0", "0.001", "0.01", "0.1", "1"), ("drift", "adaptive"), 10
SEEDS, LATER_SEEDS = (2, 3), (4, 5)
LOSS_WITHIN, ROUNDS_WITHIN = 1.02, 1.2
BEGIN, END = "<!-- held out: begin -->", "<!-- held out: end -->"


def _synthetic(alpha: float = 1.0, **sections: Any) -> dict[str, Any]:
    devices = sections.pop("data", {})
    return {"rounds": 100, "data": {"name": "synthetic", "alpha": alpha, "beta": alpha, **devices}, **sections}


def _images(name: str, model: str, concentration: float) -> dict[str, Any]:
    solver = {"epochs": 2, "batch_size": 32, "learning_rate": 0.05}
    given = {"name": name, "partition": "dirichlet", "concentration": concentration, "devices": 100}
    settings = {"rounds": 20, "data": given, "model": {"name": model}, "solver": solver}
    # A pass of a CNN over all devices costs more than the round itself, so a fixed sample of them is measured.
    return settings | ({"measure": {"devices": 20}} if model == "cnn" else {})


SETTINGS: dict[str, dict[str, Any]] = {
    "full-0-0": _synthetic(0.0, devices={"per_round": 30}),
    "full-1-1": _synthetic(devices={"per_round": 30}),
    "full-iid": {"rounds": 100, "data": {"name": "synthetic_iid"}, "devices": {"per_round": 30}},
    "20-rounds-0-0": {**_synthetic(0.0), "rounds": 20},
    "20-rounds-1-1": {**_synthetic(), "rounds": 20},
    "20-rounds-iid": {"rounds": 20, "data": {"name": "synthetic_iid"}},
    "synthetic-2-2": _synthetic(2.0),
    "100-devices-E-5": _synthetic(data={"devices": 100}, solver={"epochs": 5}),
    "E-1": _synthetic(solver={"epochs": 1}),
    "K-2": _synthetic(devices={"per_round": 2}),
    "K-50-of-100": _synthetic(data={"devices": 100}, devices={"per_round": 50}),
    "proportional": _synthetic(devices={"sampling": "proportional"}),
    "rate-over-3": _synthetic(solver={"learning_rate": 0.01 / 3}),
    "rate-times-3": _synthetic(solver={"learning_rate": 0.03}),
    "clock": _synthetic(systems={"model": "clock", "deadline": 10.0}),
    "linear-regression": {
        "rounds": 100,
        "data": {"name": "benchmarks.held_out_mu:least_squares"},
        "model": {"name": "linear_regression"},
    },
    "fashion-mlp-0.1": _images("fashion_mnist", "mlp", 0.1),
    "fashion-mlp-0.5": _images("fashion_mnist", "mlp", 0.5),
    "cifar-mlp-0.1": _images("cifar10", "mlp", 0.1),
    "cifar-mlp-0.5": _images("cifar10", "mlp", 0.5),
    "fashion-cnn-0.1": _images("fashion_mnist", "cnn", 0.1),
    "fashion-cnn-0.5": _images("fashion_mnist", "cnn", 0.5),
    "cifar-cnn-0.1": _images("cifar10", "cnn", 0.1),
    "cifar-cnn-0.5": _images("cifar10", "cnn", 0.5),
}


def least_squares(seed: int = 0) -> Population:
    """Return 30 devices with linear models of their own, y = <w + w_k, x> + noise, and x about a mean of their own."""
    rng = np.random.default_rng(seed)
    common, xs, ys, owners = rng.normal(size=20), [], [], []
    for device in range(30):
        count = int(rng.lognormal(4, 1)) + 50
        x = (rng.normal(size=20) + rng.normal(size=(count, 20))) * np.linspace(1, 0.1, 20)
        y = x @ (common + rng.normal(size=20)) + rng.normal(size=count)
        xs, ys, owners = [*xs, x], [*ys, y], [*owners, np.full(count, device)]
    x, y, owner = np.concatenate(xs), np.concatenate(ys), np.concatenate(owners)
    return Population.from_arrays(x.astype(np.float32), y.astype(np.float32), owner)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out_mu", description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--mu", nargs="+", default=[*CONSTANTS, *RULES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS, *LATER_SEEDS])
    parser.add_argument("--again", nargs="+", default=[], help="rules to run although they are in the cache")
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "held_out_mu.json")
    parser.add_argument("--write", type=Path, help="a page that has a place for the table; runs nothing")
    options = parser.parse_args(arguments)
    if options.write is None:
        for name in options.settings:
            _fill(options.cache, name, options.mu, options.seeds, options.again)
    cache = read_cache(options.cache)
    text = "\n".join([*_table(cache, SEEDS), "", *_table(cache, LATER_SEEDS)])
    print(text)
    if options.write is not None:
        made = f"Written by `python -m benchmarks.held_out_mu` on {machine()}, {datetime.date.today()}."
        write_table(options.write, f"{text}\n\n{made}", BEGIN, END)


def _key(name: str, mu: str, seed: int) -> str:
    return f"{name} mu={mu} seed={seed}"


def _fill(path: Path, name: str, mus: list[str], seeds: list[int], again: list[str]) -> None:
    cache = read_cache(path)
    is_network = "partition" in SETTINGS[name]["data"]
    for seed in seeds:
        if is_network and seed in LATER_SEEDS:
            continue
        population = None
        for mu in mus:
            key = _key(name, mu, seed)
            if key in cache and mu not in again:
                continue
            config = _config(name, mu, seed)
            population = population or data.load(config)
            started = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = train(config, population=population)
            losses = result.history.column("train_loss")
            cache[key] = {
                "losses": [None if loss is None else float(f"{loss:.5g}") for loss in losses],
                "accuracy": round(result.history[-1]["test_accuracy"] or 0.0, 4),
                "mu": float(f"{result.history[-1]['mu']:.4g}"),
                "diverged": result.summary["diverged_round"] is not None,
            }
            save_cache(path, cache)
            print(f"{key}: {losses[-1]} in {time.process_time() - started:.0f} s", file=sys.stderr, flush=True)


def _config(name: str, mu: str, seed: int) -> Config:
    settings = {section: dict(given) if isinstance(given, dict) else given for section, given in SETTINGS[name].items()}
    settings["data"]["seed"] = seed
    settings |= {"seed": seed, "engine": {"workers": 1}}
    settings["method"] = {"name": "fedprox", "mu": mu if mu in RULES else float(mu)}
    settings["measure"] = settings.get("measure", {}) | {"dissimilarity": mu == "drift"}
    return Config.from_dict(settings)


def _end(run: dict[str, Any]) -> float:
    last = run["losses"][-LAST:]
    return math.inf if None in last or run["diverged"] else statistics.fmean(last)


def _judged(cache: Cache, name: str, mu: str, best: str, seeds: list[int]) -> tuple[float, float, int]:
    """Return loss / best constant's, rounds until its loss / its own rounds, and how many runs diverged."""
    pairs = [(cache[_key(name, mu, seed)], cache[_key(name, best, seed)]) for seed in seeds]
    ratio = statistics.fmean(_end(run) for run, _ in pairs) / statistics.fmean(_end(other) for _, other in pairs)
    longest = max(_rounds(run, _end(other)) / _rounds(other, _end(other)) for run, other in pairs)
    return ratio, longest, sum(run["diverged"] for run, _ in pairs)


def _rounds(run: dict[str, Any], target: float) -> float:
    """Return the first round with that loss, at least 1: a run that ends above its start has it before the first."""
    reached = (at for at, loss in enumerate(run["losses"]) if loss is not None and loss <= target)
    return max(1, next(reached, math.inf))


def _table(cache: Cache, seeds: tuple[int, ...]) -> Iterator[str]:
    columns = [f"{rule}: {what}" for rule in RULES for what in ("loss", "rounds", "verdict")]
    yield f"Seeds {' and '.join(map(str, seeds))}:"
    yield ""
    yield from heading("setting", "seeds", "best mu", "its loss", *columns, "auto", "last mu of drift")
    met = dict.fromkeys((*RULES, "auto"), 0)
    ratios: dict[str, list[float]] = {rule: [] for rule in met}
    for name in SETTINGS:
        complete = [seed for seed in seeds if all(_key(name, mu, seed) in cache for mu in (*CONSTANTS, *RULES))]
        if not complete:
            continue
        loss = {mu: statistics.fmean(_end(cache[_key(name, mu, seed)]) for seed in complete) for mu in CONSTANTS}
        best = min(loss, key=lambda mu: loss[mu])
        auto = "drift" if _share(name) >= DRIFT_FROM else "adaptive"
        cells: list[str] = []
        for rule in RULES:
            ratio, rounds, diverged = _judged(cache, name, rule, best, complete)
            within = ratio <= LOSS_WITHIN and rounds <= ROUNDS_WITHIN and not diverged
            for each in (rule, "auto") if rule == auto else (rule,):
                met[each] += within
                ratios[each].append(ratio)
            reached = "never" if rounds == math.inf else f"{rounds:.2f}"
            verdict = "met" if within else "**diverged**" if diverged else "**missed**"
            cells += [f"{ratio:.3f}", reached, verdict]
        last = ", ".join(f"{cache[_key(name, 'drift', seed)]['mu']:.2g}" for seed in complete)
        yield line(name, ", ".join(map(str, complete)), best, f"{loss[best]:.3f}", *cells, auto, last)
    judged = len(ratios["auto"])
    yield ""
    for rule, count in met.items():
        finite = [ratio for ratio in ratios[rule] if 0 < ratio < math.inf]
        yield (
            f"- `{rule}` meets the criterion in {count} of {judged} settings; loss relative to the best constant's: "
            f"mean {statistics.geometric_mean(finite):.3f}, largest {max(finite):.3f}."
        )


def _share(name: str) -> float:
    """Return the share of the devices that take part in a round of a setting."""
    config = _config(name, "0", SEEDS[0])
    devices = 30 if name == "linear-regression" else config.data.devices
    return config.devices.per_round / devices


if __name__ == "__main__":
    main()
