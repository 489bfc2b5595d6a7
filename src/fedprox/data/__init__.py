"""Federated data sets by name: what `[data]` in a config stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedprox.config import DataConfig
from fedprox.data.arrow import read_arrow
from fedprox.data.iterator import read_iterator
from fedprox.data.leaf import read_leaf
from fedprox.data.npz import read_npz
from fedprox.data.sources import population_path
from fedprox.data.synthetic import synthetic, synthetic_iid
from fedprox.errors import DataError
from fedprox.population import Population
from fedprox.population_folder import open_population

__all__ = [
    "load",
    "paper_model",
    "read_arrow",
    "read_iterator",
    "read_leaf",
    "read_npz",
    "synthetic",
    "synthetic_iid",
]


def load(data: DataConfig) -> Population:
    """Generate, read or open the population that the config names."""
    readers: dict[str, Callable[[], Population]] = {
        "synthetic": lambda: synthetic(data.alpha, data.beta, data.devices, data.seed),
        "synthetic_iid": lambda: synthetic_iid(data.devices, data.seed),
        "leaf": lambda: read_leaf(data.path),
        "npz": lambda: read_npz(data.path, data.seed),
        "arrow": lambda: read_arrow(data.path, data.seed),
        "population": lambda: open_population(data.path),
    }
    return readers.get(data.name, lambda: _prepared(data))()


def paper_model(data: DataConfig) -> str:
    """Return the name of the model that the paper trains on this data."""
    return {"shakespeare": "char_lstm", "sent140": "sentiment_lstm"}.get(data.name, "softmax_regression")


def _prepared(data: DataConfig) -> Population:
    """Open a data set of the paper that `fedprox data prepare` has written."""
    path = Path(data.path) if data.path else population_path(data.name, data.seed)
    if not (path / "manifest.json").exists():
        seed = f" --seed {data.seed}" if data.seed else ""
        raise DataError(f"{path} has no prepared data yet; `fedprox data prepare {data.name}{seed}` makes it")
    return open_population(path)
