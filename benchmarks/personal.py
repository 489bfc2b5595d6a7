"""Personal models and personal parameters beside one model for all, on Fashion-MNIST.

    python -m benchmarks.personal                             runs what is missing, prints the tables
    python -m benchmarks.personal --write docs/methods.md     also puts them into the page
    python -m benchmarks.personal --no-runs                   tables of what the cache holds

100 devices with Dirichlet(0.1) and Dirichlet(0.5) shares of the labels, 50 rounds of ten devices, E = 2, SGD with
mini-batches of 32 at rate 0.01. The network is a perceptron with one hidden layer of 128 units that are normalised over
the units before ReLU, so that FedBN has parameters to keep: all rows have the same network and the same draws. Each
device's test examples are its own, with its own labels. *shared* is the accuracy of one model for all on all test
examples; *personal* that of each device's own model on its own. With personal parameters there is no shared model.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.many_runs import Cache, fill
from benchmarks.tables import heading, line, machine, read_cache, write_table
from fedprox import Model
from fedprox.config import with_overrides
from fedprox.experiments.compare import variant
from fedprox.models.by_name import Examples
from fedprox.models.layers import apply_dense, init_dense
from fedprox.models.model import classifier

BEGIN, END = "<!-- personal: begin -->", "<!-- personal: end -->"
CONCENTRATIONS = (0.1, 0.5)
SEEDS, HIDDEN = 3, 128
ROWS = {
    "FedAvg": "fedavg",
    "Ditto, personal_mu = 0.1": "ditto:personal_mu=0.1",
    "Ditto, personal_mu = 1": "ditto:personal_mu=1",
    "Ditto, personal_mu = 0: each device on its own": "ditto:personal_mu=0",
    "pFedMe, personal_mu = 1": "pfedme:personal_mu=1",
    "pFedMe, personal_mu = 15": "pfedme:personal_mu=15",
    "FedPer": 'fedavg:personal.parameters=["output"]',
    "FedRep": 'fedavg:personal.parameters=["output"],solver.name=personal_first',
    "FedBN": 'fedavg:personal.parameters=["norm"]',
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.personal", description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "personal.json")
    parser.add_argument("--write", type=Path, help="a page that has a place for the tables")
    parser.add_argument("--no-runs", action="store_true", help="tables of what the cache holds")
    options = parser.parse_args(arguments)
    cache = read_cache(options.cache) if options.no_runs else fill(options.cache, dict(_wanted()))
    text = "\n".join(_table(cache))
    print(text)
    if options.write is not None:
        made = f"Written by `python -m benchmarks.personal` on {machine()}, {datetime.date.today()}."
        write_table(options.write, f"{text}\n\n{made}", BEGIN, END)


def normalised_mlp(population: Examples) -> Model:
    """Return a perceptron whose hidden units are normalised example by example (layer normalisation)."""
    return _normalised_mlp(math.prod(population.shape), population.classes)


@lru_cache(maxsize=1)  # one object for one model, so that compiled programs are found again
def _normalised_mlp(features: int, classes: int) -> Model:
    def init(key: jax.Array) -> dict[str, Any]:
        first, second = jax.random.split(key)
        norm = {"scale": jnp.ones(HIDDEN), "shift": jnp.zeros(HIDDEN)}
        hidden, output = init_dense(first, features, HIDDEN), init_dense(second, HIDDEN, classes)
        return {"hidden": hidden, "norm": norm, "output": output}

    def scores(params: dict[str, Any], x: jax.Array) -> jax.Array:
        units = apply_dense(params["hidden"], x.reshape(len(x), -1))
        centred = units - units.mean(axis=1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=1, keepdims=True) + 1e-5)
        inner = jax.nn.relu(normal * params["norm"]["scale"] + params["norm"]["shift"])
        return apply_dense(params["output"], inner)

    return classifier("normalised_mlp", init, scores)


def _settings(text: str, concentration: float, seed: int) -> dict[str, Any]:
    given = {"name": "fashion_mnist", "partition": "dirichlet", "concentration": concentration, "devices": 100}
    settings = {
        "rounds": 50,
        "seed": seed,
        "data": {**given, "seed": seed},
        "model": {"name": "benchmarks.personal:normalised_mlp"},
        "solver": {"learning_rate": 0.01, "batch_size": 32, "epochs": 2},
        "devices": {"per_round": 10},
        "measure": {"every": 5, "dissimilarity": False},
        "engine": {"workers": 1},
    }
    return with_overrides(settings, variant(text).overrides)


def _key(text: str, concentration: float, seed: int) -> str:
    return f"{text} concentration={concentration:g} seed={seed}"


def _wanted() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for seed in range(SEEDS):
        for concentration in CONCENTRATIONS:
            for text in ROWS.values():
                yield (
                    _key(text, concentration, seed),
                    lambda text=text, each=concentration, seed=seed: _settings(text, each, seed),
                )


def _table(cache: Cache) -> Iterator[str]:
    columns = [f"{what}, Dirichlet({each:g})" for each in CONCENTRATIONS for what in ("shared", "personal")]
    yield from heading("", *columns, "kB a round")
    for label, text in ROWS.items():
        runs = {each: [_key(text, each, seed) for seed in range(SEEDS)] for each in CONCENTRATIONS}
        found = {each: [cache[key] for key in keys if key in cache] for each, keys in runs.items()}
        sent = [run["bytes"] / (5 * (len(run["accuracies"]) - 1)) / 1000 for each in found.values() for run in each]
        cells = [cell for each in found.values() for cell in _cells(each, "personal.parameters" in text)]
        yield line(label, *cells, f"{statistics.fmean(sent):,.0f}" if sent else "")


def _cells(runs: list[dict[str, Any]], own_parameters: bool) -> tuple[str, str]:
    """Return the accuracies of the shared and of the personal models, where there are such models."""
    if not runs:
        return "not run", ""
    if own_parameters:
        return "", _spread([run["accuracy"] for run in runs])
    personal = [run["personal"] for run in runs if "personal" in run]
    return _spread([run["accuracy"] for run in runs]), _spread(personal) if personal else ""


def _spread(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
