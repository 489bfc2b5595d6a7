"""Federated data sets by name: what `[data]` in a config stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedprox import models
from fedprox.config import Config, DataConfig
from fedprox.core.errors import ConfigError, DataError
from fedprox.data.arrow import read_arrow
from fedprox.data.iterator import read_iterator
from fedprox.data.leaf import read_leaf
from fedprox.data.npz import read_npz
from fedprox.data.sources import population_path
from fedprox.data.synthetic import synthetic, synthetic_iid
from fedprox.models import Model
from fedprox.population import Population
from fedprox.population.folder import open_population, read_manifest

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
    data, compat = config.data, config.compat
    alpha, beta = compat.deviation(data.alpha), compat.deviation(data.beta)
    readers: dict[str, Callable[[], Population]] = {
        "synthetic": lambda: synthetic(alpha, beta, data.devices, data.seed, test_share=compat.test_share),
        "synthetic_iid": lambda: synthetic_iid(data.devices, data.seed, test_share=compat.test_share),
        "leaf": lambda: read_leaf(data.path),
        "npz": lambda: read_npz(data.path, data.seed),
        "arrow": lambda: read_arrow(data.path, data.seed),
        "population": lambda: open_population(data.path),
    }
    return readers.get(data.name, lambda: _prepared(data))()


def paper_model(data: DataConfig) -> str:
    """Return the name of the model that the paper trains on this data."""
    return {"shakespeare": "char_lstm", "sent140": "sentiment_lstm"}.get(data.name, "softmax_regression")


def model_for(config: Config, population: Population) -> Model:
    """Return the model that the config names, or the paper's for its data, shaped for the population."""
    name = config.model.name or paper_model(config.data)
    if population.classes == 0 and name != "linear_regression":
        raise ConfigError(f"`model.name` must be 'linear_regression' for data whose y are not labels; got {name!r}")
    return models.build(name, population.shape, population.classes, population.extras.get("vectors"))


def _prepared(data: DataConfig) -> Population:
    """Open a data set of the paper that `fedprox data prepare` has written."""
    path = Path(data.path) if data.path else population_path(data.name, data.seed)
    if not (path / "manifest.json").exists():
        seed = f" --seed {data.seed}" if data.seed else ""
        raise DataError(f"{path} has no prepared data yet; `fedprox data prepare {data.name}{seed}` makes it")
    about = read_manifest(path).get("about")
    if isinstance(about, dict) and about.get("data") == "mnist" and "pixels" not in about:
        raise DataError(
            f"{path} must have pixels of 0 to 255 before they are standardised; it was prepared by an earlier version, "
            f"which divided them by 255: `fedprox data prepare mnist` makes it again"
        )
    return open_population(path)
