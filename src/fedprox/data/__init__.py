"""Federated data sets by name: what `[data]` in a config stands for."""

from __future__ import annotations

from fedprox import models
from fedprox.config import Config, DataConfig
from fedprox.config.parts import build_part, check_kind, is_builtin
from fedprox.core.errors import ConfigError
from fedprox.data.arrow import read_arrow
from fedprox.data.iterator import read_iterator
from fedprox.data.leaf import read_leaf
from fedprox.data.npz import read_npz
from fedprox.data.synthetic import synthetic, synthetic_iid
from fedprox.models import Model
from fedprox.population import Population

__all__ = [
    "load",
    "model_for",
    "paper_model",
    "read_arrow",
    "read_iterator",
    "read_leaf",
    "read_npz",
    "synthetic",
    "synthetic_iid",
]


def load(config: Config) -> Population:
    """Generate, read or open the population that the config names."""
    always = {"compat": config.compat}
    population: Population = build_part("data", "data.name", config.data, always, {"seed": config.data.seed})
    check_kind(population, Population, "a Population", "data.name", config.data.name)
    return population


def paper_model(data: DataConfig) -> str:
    """Return the name of the model that the paper trains on this data."""
    return {"shakespeare": "char_lstm", "sent140": "sentiment_lstm"}.get(data.name, "softmax_regression")


def model_for(config: Config, population: Population) -> Model:
    """Return the model that the config names, or the paper's for its data, shaped for the population."""
    name = config.model.name or paper_model(config.data)
    if population.classes == 0 and name != "linear_regression" and is_builtin("models", name):
        raise ConfigError(f"`model.name` must be 'linear_regression' for data whose y are not labels; got {name!r}")
    return models.build_for(config.model.model_copy(update={"name": name}), population, config.seed)
