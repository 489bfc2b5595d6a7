"""Federated data sets by name: what `[data]` in a config stands for."""

from __future__ import annotations

from fedprox.config import DataConfig
from fedprox.data.leaf import read_leaf
from fedprox.data.npz import read_npz
from fedprox.data.synthetic import synthetic, synthetic_iid
from fedprox.population import Population

__all__ = ["load", "paper_model", "read_leaf", "read_npz", "synthetic", "synthetic_iid"]


def load(data: DataConfig) -> Population:
    """Generate or read the population that the config names."""
    match data.name:
        case "synthetic":
            return synthetic(data.alpha, data.beta, data.devices, data.seed)
        case "synthetic_iid":
            return synthetic_iid(data.devices, data.seed)
        case "leaf":
            return read_leaf(data.path)
        case "npz":
            return read_npz(data.path, data.seed)


def paper_model(data: DataConfig) -> str:
    """Return the name of the model that the paper trains on this data."""
    return "softmax_regression"
