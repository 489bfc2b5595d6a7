"""What is a merge rule worth under attack, and what does it cost where no device attacks?

    python -m benchmarks.attacks                             runs what is missing, prints the tables
    python -m benchmarks.attacks --data synthetic            one data set
    python -m benchmarks.attacks --write docs/attacks.md     also puts the tables into the page
    python -m benchmarks.attacks --no-runs                   the tables of what the cache holds

Every rule of the recipe `under-attack` with every attack at 10, 20 and 30% attackers, and with none, on Synthetic(1,1)
and MNIST (the paper's learning rates, K and E), and with none on the same data divided evenly (IID): what a rule loses
there it loses without heterogeneity. Accuracies are means over the last three measured rounds and over the seeds.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.many_runs import Cache, fill
from benchmarks.tables import heading, line, machine, read_cache, write_table
from fedprox.config import recipes, with_overrides
from fedprox.experiments.compare import variant
from fedprox.experiments.suite import read_suite

KINDS = ("sign_flip", "scale", "noise", "label_flip", "alie", "ipm")
SHARES = (0.1, 0.2, 0.3)
DATA: dict[str, dict[str, Any]] = {
    "synthetic": {},
    "mnist": {"data": {"name": "mnist"}, "solver": {"learning_rate": 0.03}},
}
EVEN: dict[str, dict[str, Any]] = {
    "synthetic": {"data": {"name": "synthetic_iid"}},
    "mnist": {"data": {"name": "mnist", "partition": "iid", "devices": 1000}, "solver": {"learning_rate": 0.03}},
}
TITLES = {"synthetic": "Synthetic(1,1)", "mnist": "MNIST"}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=[*DATA], choices=[*DATA])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "attacks.json")
    parser.add_argument("--write", type=Path, help="a page that has a place for the tables")
    parser.add_argument("--no-runs", action="store_true", help="tables of what the cache holds")
    options = parser.parse_args(arguments)
    wanted = {key: how for name in options.data for key, how in _wanted(name, options.seeds)}
    cache = read_cache(options.cache) if options.no_runs else fill(options.cache, wanted)
    text = "\n".join(row for name in options.data for row in _table(cache, name, options.seeds))
    print(text)
    if options.write is not None:
        made = f"Written by `python -m benchmarks.attacks` on {machine()}, {datetime.date.today()}."
        write_table(options.write, f"{text}\n{made}")


def _rules() -> dict[str, tuple[str, ...]]:
    """Return the rules of the recipe by name, with the settings that they are compared with."""
    _, suite = read_suite(recipes.load_settings("under-attack"))
    found = [variant(text).overrides for text in suite.methods]
    return {given.partition("=")[2]: each for each in found for given in each if given.startswith("merge.rule=")}


def _wanted(name: str, seeds: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for rule in _rules():
        for seed in range(seeds):
            for kind, share in _columns():
                yield (
                    _key(name, rule, kind, share, seed),
                    lambda rule=rule, seed=seed, kind=kind, share=share: _settings(name, rule, kind, share, seed),
                )


def _columns() -> list[tuple[str, float]]:
    return [("none", 0.0), ("even", 0.0), *((kind, share) for kind in KINDS for share in SHARES)]


def _key(name: str, rule: str, kind: str, share: float, seed: int) -> str:
    return f"{name} {rule} {kind} {share:g} seed={seed}"


def _settings(name: str, rule: str, kind: str, share: float, seed: int) -> dict[str, Any]:
    settings, _ = read_suite(recipes.load_settings("under-attack"))
    settings = with_overrides(settings, _rules()[rule]) | {"seed": seed, "engine": {"workers": 1}}
    for section, given in (EVEN if kind == "even" else DATA)[name].items():
        settings[section] = given if section == "data" else {**settings.get(section, {}), **given}
    settings["attack"] = {"share": share, "kind": kind} if share else {}
    return settings


def _table(cache: Cache, name: str, seeds: int) -> Iterator[str]:
    """Yield a table: a row for each rule, a column for each attack with the accuracies at the three shares."""
    yield f"{TITLES[name]}: test accuracy in %, at {', '.join(f'{share:.0%}' for share in SHARES)} attackers."
    yield ""
    yield from heading("rule", "no attack", "no attack, IID", *(f"`{kind}`" for kind in KINDS))
    for rule in _rules():
        if not all(key in cache for key, _ in _wanted(name, seeds) if key.startswith(f"{name} {rule} ")):
            yield line(f"`{rule}`", "not run", *[""] * (1 + len(KINDS)))
            continue
        cells = [_accuracy(cache, name, rule, kind, 0.0, seeds) for kind in ("none", "even")]
        attacked = [" / ".join(_accuracy(cache, name, rule, kind, share, seeds) for share in SHARES) for kind in KINDS]
        yield line(f"`{rule}`", *cells, *attacked)
    yield ""


def _accuracy(cache: Cache, name: str, rule: str, kind: str, share: float, seeds: int) -> str:
    runs = [cache[_key(name, rule, kind, share, seed)] for seed in range(seeds)]
    return f"{100 * statistics.fmean(run['accuracy'] for run in runs):.0f}"


if __name__ == "__main__":
    main()
