"""Federated data sets by name: what `[data]` in a config refers to."""

from __future__ import annotations

from pathlib import Path

from fedprox import models
from fedprox.config import Config, DataConfig
from fedprox.config.builtin_parts import FILE_KINDS
from fedprox.config.parts import build_part, check_kind, is_builtin
from fedprox.core.errors import ConfigError, DataError
from fedprox.data.arrow import read_arrow
from fedprox.data.csv import read_csv
from fedprox.data.dataset import read_dataset
from fedprox.data.iterator import read_iterator
from fedprox.data.leaf import read_leaf
from fedprox.data.npz import read_npz
from fedprox.data.sources import SOURCES
from fedprox.data.synthetic import synthetic, synthetic_iid
from fedprox.models import Model
from fedprox.models.model_check import check_fits
from fedprox.population import Population
from fedprox.population.renumbered import targets
from fedprox.population.repartition import repartition
from fedprox.population.set_aside import set_aside

__all__ = [
    "find_settings",
    "load",
    "match_model",
    "model_for",
    "paper_model",
    "read_arrow",
    "read_csv",
    "read_dataset",
    "read_iterator",
    "read_leaf",
    "read_npz",
    "repartition",
    "synthetic",
    "synthetic_iid",
    "with_set_aside",
]


def load(config: Config) -> Population:
    """Generate, read or open the population that the config names."""
    data = config.data
    # a partition is made from the data prepared with seed 0; data.seed then decides the division
    seed = 0 if data.partition and data.name in SOURCES else data.seed
    given = {"compat": config.compat, "config": config}
    population: Population = build_part("data", "data.name", data, given, {"seed": seed})
    check_kind(population, Population, "a Population", "data.name", data.name)
    if data.partition:
        population = repartition(
            population,
            data.partition,
            data.devices,
            concentration=data.concentration,
            classes_per_device=data.classes_per_device,
            seed=data.seed,
        )
    return with_set_aside(config, population)


def with_set_aside(config: Config, population: Population) -> Population:
    """Return a population with the config's shares set aside for validation, unless it has such samples already."""
    data = config.data
    return set_aside(
        population,
        validation=data.validation if population.validation is None else 0.0,
        holdout_devices=data.holdout_devices if population.holdout is None else 0.0,
        seed=data.seed,
    )


def paper_model(data: DataConfig) -> str:
    """Return the name of the paper's model for this data; softmax regression for data that is not in the paper."""
    return {"shakespeare": "char_lstm", "sent140": "sentiment_lstm"}.get(data.name, "softmax_regression")


def model_for(config: Config, population: Population) -> Model:
    """Return the model that the config names, or the paper's for its data, shaped for the population."""
    name = config.model.name or paper_model(config.data)
    if population.classes == 0 and name != "linear_regression" and is_builtin("models", name):
        raise ConfigError(
            f"`model.name` must be 'linear_regression' for data whose y are real numbers, not labels; got {name!r}: "
            f"for labels give y as integers or text"
        )
    if population.classes == 1 and name != "linear_regression" and is_builtin("models", name):
        raise DataError(
            f"`model.name` = {name!r} must have at least two classes to tell apart; all labels of the data are "
            f"{(population.labels or (0,))[0]!r}"
        )
    return models.build_for(config.model.model_copy(update={"name": name}), population, config.seed, config)


def match_model(population: Population, model: Model) -> Population:
    """Return the population as a model needs it: for a regression, with the labels as their original numbers.

    Refuses a population that the model would take without an error, but not as meant.
    """
    check_fits(model, population.shape, population.classes)
    return population if model.predict is not None else targets(population)


def find_settings(source: str) -> dict[str, str]:
    """Return the `[data]` section for a name, file or folder.

    >>> find_settings("mnist"), find_settings("mine.npz")
    ({'name': 'mnist'}, {'name': 'npz', 'path': 'mine.npz'})
    """
    path = Path(source)
    kind = FILE_KINDS.get(path.suffix if path.suffix != ".gz" else Path(path.stem).suffix)
    if kind is None and (path / "train").is_dir():
        kind = "leaf"
    elif kind is None and (path.is_dir() or "/" in source):
        kind = "population"
    return {"name": source} if kind is None else {"name": kind, "path": source}
