"""How much does it matter where the paper's text and its released code differ? Every setting of `[compat]` is tried.

    python -m benchmarks.compat                          runs what the cache does not hold; prints the tables
    python -m benchmarks.compat --write docs/compat.md   and puts them into the page

Synthetic(1,1) with its recipe (the paper's rounds, learning rate, K and E) at 90% stragglers: each setting alone and
all released ones together, with three methods and every seed. alpha and beta are the same as deviations and as
variances where they are 1, so they are tried on Synthetic(0.5,0.5) too. A seed draws everything, the data included
(`data.seed` = `seed`), and a difference is taken between runs of the same seed. The loss, test accuracy and gradient
variance of a run are means over its last 10 rounds.

A result takes one line of the cache. After a change of what a setting does, delete the lines of that setting.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.tables import Cache, heading, line, machine, read_cache, save_cache, write_table
from fedprox.config import CompatConfig, Config, recipes
from fedprox.experiments.scheduler import Ended, Job, run_jobs
from fedprox.runs.folder import read_history

COMMAND = "python -m benchmarks.compat"
STRAGGLERS = 0.9
LAST = 10  # rounds over which the end of a run is averaged
DEFAULT = "default"
ALONE = {
    f"{key} = {other}": {key: other}
    for key, field in CompatConfig.model_fields.items()
    for other in ("paper", "released")
    if other != field.default
}
TOGETHER = {"all released": dict.fromkeys(CompatConfig.model_fields, "released")}
COMPATS: dict[str, dict[str, str]] = {DEFAULT: {}, **ALONE, **TOGETHER}
DATA = {
    "synthetic-1-1": tuple(COMPATS),
    "synthetic-0.5-0.5": (DEFAULT, "alpha_beta = paper"),
}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedProx, mu = 0": {"name": "fedprox", "mu": 0.0},
    "FedProx, mu = 1": {"name": "fedprox", "mu": 1.0},
}
MEASURES = {"train_loss": (1, ".3f"), "test_accuracy": (100, ".1f"), "gradient_variance": (1, ".2f")}


@dataclass(frozen=True)
class Case:
    """A data set, a choice of `[compat]` and a method."""

    data: str
    compat: str
    method: str

    def key(self, seed: int) -> str:
        return f"{self.data}; {self.compat}; {self.method}; seed {seed}"

    def config(self, seed: int) -> Config:
        settings = recipes.load_settings(self.data)
        settings["seed"] = settings["data"]["seed"] = seed
        settings["method"] = METHODS[self.method]
        settings["devices"] = {"stragglers": STRAGGLERS}
        settings["compat"] = COMPATS[self.compat]
        return Config.from_dict(settings)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one for each core")
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "compat.json")
    parser.add_argument("--write", type=Path, help="a page that has a place for the tables")
    options = parser.parse_args(arguments)
    cache = read_cache(options.cache)
    for data, compats in DATA.items():
        for compat in compats:
            _fill(cache, [Case(data, compat, method) for method in METHODS], options)
    made = cache["made"]
    text = "\n".join([*_tables(cache, options.seeds), f"Run by `{COMMAND}` on {made['machine']}, {made['date']}."])
    print(text)
    if options.write is not None:
        write_table(options.write, text)


def _fill(cache: Cache, cases: list[Case], options: argparse.Namespace) -> None:
    """Run what the cache does not hold of some cases, and save it."""
    missing = [(case, seed) for case in cases for seed in range(options.seeds) if case.key(seed) not in cache]
    if not missing:
        return
    print(f"{cases[0].data}, {cases[0].compat}: {len(missing)} runs", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(case.key(seed), case.config(seed), Path(folder) / str(i)) for i, (case, seed) in enumerate(missing)]
        every = run_jobs(jobs, workers=options.workers)
        if failed := [ended for ended in every if ended.error is not None]:
            sys.exit(f"{len(failed)} runs failed; {failed[0].job.name}: {failed[0].error}")
        cache |= {ended.job.name: _result(ended) for ended in every}
    cache["made"] = {"machine": machine(), "date": str(datetime.date.today())}
    save_cache(options.cache, cache)


def _result(ended: Ended) -> dict[str, Any]:
    rows = read_history(ended.job.out)[-LAST:]
    means = {name: float(np.mean(np.array(rows.column(name), float))) for name in MEASURES}
    return {name: round(mean, 9) for name, mean in means.items()}  # a run that is not finite has NaN


def _tables(cache: Cache, seeds: int) -> Iterator[str]:
    """Yield one table per data set: a row for each method and choice, with differences from the default."""
    for data, compats in DATA.items():
        made_with = recipes.load_settings(data)["data"]
        yield f"Synthetic({made_with['alpha']:g},{made_with['beta']:g}), {STRAGGLERS:.0%} stragglers:"
        yield ""
        names = ("training loss", "test accuracy, %", "gradient variance")
        yield from heading("method", "`[compat]`", *(cell for name in names for cell in (name, "difference")))
        for method in METHODS:
            default = _values(cache, Case(data, DEFAULT, method), seeds)
            for compat in compats:
                values = _values(cache, Case(data, compat, method), seeds)
                cells = []
                for name, (factor, form) in MEASURES.items():
                    difference = values[name] - default[name]
                    cells += [_interval(factor * values[name], form), _difference(factor * difference, form)]
                if compat == DEFAULT:
                    cells[1::2] = [""] * len(MEASURES)
                yield line(method, compat if compat in (DEFAULT, *TOGETHER) else f"`{compat}`", *cells)
        yield ""


def _values(cache: Cache, case: Case, seeds: int) -> dict[str, np.ndarray]:
    runs = [cache[case.key(seed)] for seed in range(seeds)]
    return {name: np.array([run[name] for run in runs]) for name in MEASURES}


def _interval(values: np.ndarray, form: str) -> str:
    """Return the mean and half the width of its 95% interval (Student's t over seeds)."""
    return f"{values.mean():{form}} ± {_half_width(values):{form}}"


def _difference(values: np.ndarray, form: str) -> str:
    """Return the mean difference with its interval, in bold where zero is outside; "none" where runs are the same."""
    if not values.any():
        return "none"
    text = f"{values.mean():+{form}} ± {_half_width(values):{form}}"
    return f"**{text}**" if abs(values.mean()) > _half_width(values) else text


def _half_width(values: np.ndarray) -> float:
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


if __name__ == "__main__":
    main()
