"""A suite: one comparison for each of several shares of stragglers.

A config file or recipe with a `[compare]` section describes it:

    [compare]
    methods = ["fedavg", "fedprox:mu=1"]    # what `fedprox compare -m` takes
    stragglers = [0.0, 0.5, 0.9]
    seeds = 5
    mus = [0.01, 0.1]                       # for methods written with mu=best
    mu_rounds = 10                          # of the runs that choose among them
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedprox.config import with_overrides
from fedprox.core.errors import ConfigError, nearest
from fedprox.experiments.best_mu import asks_for_best
from fedprox.experiments.compare import Comparison, check_apart, collect, plan, variant
from fedprox.experiments.scheduler import Event
from fedprox.experiments.tune import MUS
from fedprox.experiments.unfinished import run_unfinished

__all__ = ["Suite", "read_suite", "run_suite", "suite_table"]


@dataclass(frozen=True)
class Suite:
    """What is compared: methods, shares of stragglers (none: the plan's own), and over how many seeds.

    The mu of a method written with `mu=best` is chosen from `mus` by runs of `mu_rounds` rounds (`best_mu`).
    """

    methods: tuple[str, ...] = ("fedavg", "fedprox:mu=0", "fedprox:mu=1")
    stragglers: tuple[float, ...] = ()
    seeds: int = 1
    mus: tuple[float, ...] = MUS
    mu_rounds: int = 10


def read_suite(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Suite]:
    """Divide settings into those of a run and the suite in their `[compare]` section.

    >>> read_suite({"rounds": 3, "compare": {"stragglers": [0.0, 0.9]}})[1].stragglers
    (0.0, 0.9)
    """
    plain = dict(settings)
    section = plain.pop("compare", {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"`compare` must be a table of settings; got {section!r}")
    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "methods": (lambda value: _is_list(value, lambda item: isinstance(item, str)) and value, "a list of methods"),
        "stragglers": (lambda value: _is_list(value, _is_share), "a list of numbers in [0, 1]"),
        "seeds": (lambda value: type(value) is int and value >= 1, "an integer >= 1"),
        "mus": (lambda value: _is_list(value, _is_mu) and value, "a list of numbers >= 0"),
        "mu_rounds": (lambda value: type(value) is int and value >= 1, "an integer >= 1"),
    }
    given: dict[str, Any] = {}
    for key, value in section.items():
        if key not in rules:
            raise ConfigError(f"unknown key `compare.{key}`" + nearest(key, rules))
        fits, rule = rules[key]
        if not fits(value):
            raise ConfigError(f"`compare.{key}` must be {rule}; got {value!r}")
        given[key] = tuple(value) if isinstance(value, list) else value
    if given.get("stragglers") and any(map(asks_for_best, given.get("methods", ()))):
        raise ConfigError("`compare.stragglers` must be left out with a method written with `mu=best`")
    own = plain.get("devices", {}).get("stragglers")
    if given.get("stragglers") and own is not None:
        raise ConfigError(
            f"`devices.stragglers` must be left out with `compare.stragglers`, which sets it; got {own!r}"
        )
    return plain, Suite(**given)


def run_suite(
    settings: Mapping[str, Any],
    suite: Suite,
    *,
    out: str | Path,
    workers: int = 0,
    resume: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> dict[float, Comparison]:
    """Run all comparisons of a suite, as one list of jobs; return them by share of stragglers."""
    variants = [variant(text) for text in suite.methods]
    jobs, count = [], len(variants) * suite.seeds
    for share in suite.stragglers:
        shared = with_overrides(settings, [f"devices.stragglers={float(share)}"])
        jobs += plan(shared, variants, suite.seeds, Path(out) / f"stragglers-{share:g}", resume=resume)
    check_apart(jobs)
    ended = run_unfinished(jobs, workers=workers, on_event=on_event)
    return {share: collect(ended[index * count : (index + 1) * count]) for index, share in enumerate(suite.stragglers)}


def suite_table(comparisons: Mapping[float, Comparison]) -> list[dict[str, Any]]:
    """Return one row per method and share: that of the comparison, with the share as `stragglers`."""
    return [{"stragglers": share, **row} for share, one in comparisons.items() for row in one.table()]


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_mu(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 1
