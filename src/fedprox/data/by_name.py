"""Data sets as configs name them: generated, or prepared by `fedprox data prepare`."""

from __future__ import annotations

from pathlib import Path

from fedprox.config import CompatConfig
from fedprox.core.errors import DataError
from fedprox.data.sources import population_path
from fedprox.data.synthetic import synthetic, synthetic_iid
from fedprox.population import Population
from fedprox.population.folder import open_population, read_manifest

__all__ = [
    "cifar10",
    "fashion_mnist",
    "femnist",
    "mnist",
    "sent140",
    "shakespeare",
    "synthetic_by_name",
    "synthetic_iid_by_name",
]


def synthetic_by_name(
    alpha: float = 1.0, beta: float = 1.0, devices: int = 30, seed: int = 0, *, compat: CompatConfig
) -> Population:
    """Return Synthetic(alpha, beta)."""
    spreads = compat.deviation(alpha), compat.deviation(beta)
    return synthetic(*spreads, devices, seed, test_share=compat.test_share)


def synthetic_iid_by_name(devices: int = 30, seed: int = 0, *, compat: CompatConfig) -> Population:
    """Return Synthetic IID."""
    return synthetic_iid(devices, seed, test_share=compat.test_share)


def mnist(path: str = "", seed: int = 0) -> Population:
    """Return the paper's MNIST."""
    return _prepared("mnist", path, seed)


def femnist(path: str = "", seed: int = 0) -> Population:
    """Return the paper's FEMNIST."""
    return _prepared("femnist", path, seed)


def shakespeare(path: str = "", seed: int = 0) -> Population:
    """Return the paper's Shakespeare."""
    return _prepared("shakespeare", path, seed)


def sent140(path: str = "", seed: int = 0) -> Population:
    """Return the paper's Sent140."""
    return _prepared("sent140", path, seed)


def cifar10(path: str = "", seed: int = 0) -> Population:
    """Return CIFAR-10 as one device, for `data.partition` to divide."""
    return _prepared("cifar10", path, seed)


def fashion_mnist(path: str = "", seed: int = 0) -> Population:
    """Return Fashion-MNIST as one device, for `data.partition` to divide."""
    return _prepared("fashion_mnist", path, seed)


def _prepared(name: str, path: str, seed: int) -> Population:
    """Open a data set written by `fedprox data prepare`."""
    folder = Path(path) if path else population_path(name, seed)
    if not (folder / "manifest.json").exists():
        option = f" --seed {seed}" if seed else ""
        raise DataError(f"{folder} has no prepared data yet; run `fedprox data prepare {name}{option}`")
    about = read_manifest(folder).get("about")
    if isinstance(about, dict) and about.get("data") == "mnist" and "pixels" not in about:
        raise DataError(
            f"{folder} must have pixels of 0 to 255 before they are standardised; it was prepared by an earlier "
            f"version, which divided them by 255: run `fedprox data prepare mnist` again"
        )
    return open_population(folder)
