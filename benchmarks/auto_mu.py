"""How good is `method.mu = "auto"`? It is compared with the best constant mu, which no user knows beforehand.

    python -m benchmarks.auto_mu                                    all data sets that can be loaded; prints the tables
    python -m benchmarks.auto_mu --data synthetic-1-1 --mu auto     some of them, and some values of mu
    python -m benchmarks.auto_mu --data my-data.toml                data of your own: a config file
    python -m benchmarks.auto_mu --mu --write docs/choosing-mu.md   runs nothing; puts the table into the page

Each data set runs with its recipe (the paper's rounds, learning rate, K and E) at 0, 50 and 90% stragglers with every
mu and every seed; stragglers are kept. A seed draws devices, stragglers, epochs and mini-batches; synthetic data are
generated anew with it too (`data.seed` = `seed`), other data keep their one partition. The loss and the test accuracy
of a run are means over its last 10 rounds. The best constant is the mu of the grid with the lowest loss on average
over the seeds; a mu that diverges with any seed is not a candidate. The adaptive rule starts from mu = 0, its default.

A result takes one line of the cache, and only what is not in the cache is run. After a change of the controller, run
it with `--again auto`.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import Cache, heading, line, machine, read_cache, save_cache, write_table
from fedprox.config import Config, recipes
from fedprox.core.errors import FedProxError
from fedprox.experiments.scheduler import Ended, Job, run_jobs
from fedprox.runs.folder import read_history

DATA = ("synthetic-iid", "synthetic-0-0", "synthetic-0.5-0.5", "synthetic-1-1", "mnist", "femnist")
LEVELS = (0.0, 0.5, 0.9)
CONSTANTS = ("0", "0.001", "0.01", "0.1", "1")
RULES = ("auto", "adaptive")
LAST = 10  # rounds over which the end of a run is averaged
LOSS_WITHIN, ACCURACY_WITHIN = 1.05, 0.01


@dataclass(frozen=True)
class Setting:
    """A data set and a share of stragglers."""

    data: str
    stragglers: float

    def key(self, mu: str, seed: int) -> str:
        return f"{self.data} stragglers={self.stragglers} mu={mu} seed={seed}"

    def config(self, mu: str, seed: int) -> Config:
        settings = recipes.load_settings(self.data)
        settings["seed"] = seed
        if settings["data"]["name"].startswith("synthetic"):
            settings["data"]["seed"] = seed
        settings["method"] = {"name": "fedprox", "mu": mu if mu in RULES else float(mu)}
        settings.setdefault("devices", {})["stragglers"] = self.stragglers
        settings["measure"] = {"dissimilarity": False}
        return Config.from_dict(settings)


@dataclass(frozen=True)
class Outcome:
    """The mean over seeds of one mu in one setting."""

    loss: float
    accuracy: float
    diverged: int


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    cache = read_cache(options.cache)
    for setting in (Setting(data, level) for data in options.data for level in options.stragglers):
        _fill(cache, setting, options)
    table = "\n".join(_tables(cache, options.data, options.seeds))
    print(table)
    if options.write is not None:
        command = "python -m benchmarks.auto_mu"
        write_table(options.write, f"{table}\n\nWritten by `{command}` on {machine()}, {datetime.date.today()}.")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto_mu", description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA, help="recipes or .toml files")
    parser.add_argument("--stragglers", nargs="+", type=float, default=LEVELS)
    parser.add_argument("--mu", nargs="*", default=[*CONSTANTS, *RULES], help="numbers, adaptive, auto; none: no runs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one for each core")
    parser.add_argument("--again", nargs="+", default=[], help="values of mu to run although they are in the cache")
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "auto_mu.json")
    parser.add_argument("--write", type=Path, help="a page that has a place for the table")
    return parser.parse_args(arguments)


def _fill(cache: Cache, setting: Setting, options: argparse.Namespace) -> None:
    """Run what the cache does not hold of a setting, and save it."""
    wanted = {setting.key(mu, seed): (mu, seed) for mu in options.mu for seed in range(options.seeds)}
    missing = {key: at for key, at in wanted.items() if key not in cache or at[0] in options.again}
    if not missing:
        return
    print(f"{setting.data}, {setting.stragglers:.0%} stragglers: {len(missing)} runs", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            jobs = [
                Job(key, setting.config(*at), Path(folder) / str(index))
                for index, (key, at) in enumerate(missing.items())
            ]
        except FedProxError as error:
            print(f"  left out: {error}", file=sys.stderr)
            return
        every = run_jobs(jobs, workers=options.workers)
        cache |= {ended.job.name: _result(ended) for ended in every if ended.error is None}
        if failed := [ended for ended in every if ended.error is not None]:
            print(f"  {len(failed)} runs failed; {failed[0].job.name}: {failed[0].error}", file=sys.stderr)
    save_cache(options.cache, cache)


def _result(ended: Ended) -> dict[str, Any]:
    rows = read_history(ended.job.out)[-LAST:]
    losses, accuracies = rows.column("train_loss"), rows.column("test_accuracy")
    finite = None not in losses
    return {
        "loss": round(statistics.fmean(losses), 6) if finite else None,
        "accuracy": round(statistics.fmean(accuracies), 6),
        "last_mu": rows[-1]["mu"],
        "diverged_round": (ended.summary or {})["diverged_round"],
    }


def _outcome(cache: Cache, setting: Setting, mu: str, seeds: int) -> Outcome | None:
    """Return the mean over seeds, None where a seed is missing."""
    runs = [cache.get(setting.key(mu, seed)) for seed in range(seeds)]
    known = [run for run in runs if run is not None]
    if len(known) < seeds:
        return None
    losses = [math.inf if run["loss"] is None else run["loss"] for run in known]
    diverged = sum(run["diverged_round"] is not None for run in known)
    return Outcome(statistics.fmean(losses), statistics.fmean(run["accuracy"] for run in known), diverged)


def _tables(cache: Cache, names: list[str], seeds: int) -> Iterator[str]:
    """Yield the lines of two tables: the rules, the constants. A setting without all constants is "not run"."""
    rows = {setting: _constants(cache, setting, seeds) for setting in (Setting(d, s) for d in names for s in LEVELS)}
    missing = [setting for setting, constants in rows.items() if len(constants) < len(CONSTANTS)]
    rows = {setting: constants for setting, constants in rows.items() if setting not in missing}
    rules = [f"{rule}: {what}" for rule in RULES for what in ("loss / best", "accuracy - best", "diverged", "verdict")]
    yield from heading("data", "stragglers", "best mu", "its loss", "its accuracy", *rules)
    for setting, constants in rows.items():
        mu = _best(constants)
        best = constants[mu]
        verdicts = [cell for rule in RULES for cell in _verdict(_outcome(cache, setting, rule, seeds), best)]
        yield line(*_label(setting), mu, f"{best.loss:.3f}", f"{best.accuracy:.1%}", *verdicts)
    for setting in missing:
        yield line(*_label(setting), "not run", *[""] * (2 + len(rules)))
    yield ""
    yield from heading("data", "stragglers", *(f"mu = {mu}: loss, accuracy" for mu in CONSTANTS))
    for setting, constants in rows.items():
        yield line(*_label(setting), *(_cell(constants[mu]) for mu in CONSTANTS))


def _constants(cache: Cache, setting: Setting, seeds: int) -> dict[str, Outcome]:
    outcomes = {mu: _outcome(cache, setting, mu, seeds) for mu in CONSTANTS}
    return {mu: outcome for mu, outcome in outcomes.items() if outcome is not None}


def _best(constants: dict[str, Outcome]) -> str:
    stable = [mu for mu, outcome in constants.items() if outcome.diverged == 0]
    return min(stable or constants, key=lambda mu: constants[mu].loss)


def _verdict(outcome: Outcome | None, best: Outcome) -> list[str]:
    if outcome is None:
        return ["not run", "", "", ""]
    ratio, more = outcome.loss / best.loss, outcome.accuracy - best.accuracy
    within = ratio <= LOSS_WITHIN and more >= -ACCURACY_WITHIN and outcome.diverged == 0
    return [f"{ratio:.3f}", f"{100 * more:+.1f}", str(outcome.diverged), "within" if within else "**miss**"]


def _label(setting: Setting) -> tuple[str, str]:
    return Path(setting.data).name.removesuffix(".toml"), f"{setting.stragglers:.0%}"


def _cell(outcome: Outcome) -> str:
    return f"{outcome.loss:.3f}, {outcome.accuracy:.1%}" + (
        f", {outcome.diverged} diverged" if outcome.diverged else ""
    )


if __name__ == "__main__":
    main()
