"""Optional packages: what each extra of the package is for, and the sentence for one that is not installed.

The extras of `pyproject.toml` that a user may want are listed here once; `fedprox doctor` shows them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedprox.core.errors import ConfigError

__all__ = ["EXTRAS", "Extra", "MissingExtraError", "extra_of_module", "needs_extra"]


@dataclass(frozen=True)
class Extra:
    """An extra: the module that shows it is installed, the package's name, and what it is for."""

    module: str
    package: str
    purpose: str


EXTRAS = {
    "arrow": Extra("pyarrow", "PyArrow", "Parquet and Arrow files as data"),
    "equinox": Extra("equinox", "Equinox", "Equinox models"),
    "flax": Extra("flax", "Flax", "Flax models"),
    "flower": Extra("flwr", "Flower", "fedprox deploy: real devices"),
    "frames": Extra("polars", "Polars", "history.to_polars() and Parquet exports"),
    "mlflow": Extra("mlflow", "MLflow", "--track mlflow"),
    "optax": Extra("optax", "Optax", "solver.name = 'optax'"),
    "privacy": Extra("dp_accounting", "dp-accounting", "differential privacy"),
    "ray": Extra("ray", "Ray", "engine.name = 'ray': simulation on a cluster"),
    "scipy": Extra("scipy", "SciPy", "SciPy solvers"),
    "tensorboard": Extra("tensorboard", "TensorBoard", "--track tensorboard"),
    "torch": Extra("torch", "PyTorch", "PyTorch models and solvers"),
    "tune": Extra("optuna", "Optuna", "fedprox tune --trials"),
    "wandb": Extra("wandb", "Weights & Biases", "--track wandb"),
}


class MissingExtraError(ConfigError, ImportError):
    """A feature whose package is not installed.

    >>> str(MissingExtraError("`engine.name` = 'ray'", "ray"))
    "`engine.name` = 'ray' needs Ray, which is not installed: pip install 'fedprox[ray]'"
    """

    def __init__(self, feature: str, extra: str) -> None:
        package = EXTRAS[extra].package
        super().__init__(f"{feature} needs {package}, which is not installed: pip install 'fedprox[{extra}]'")


def extra_of_module(module: str) -> str | None:
    """Return the extra that brings a module; None for a module of no extra.

    >>> extra_of_module("torch.nn"), extra_of_module("requests")
    ('torch', None)
    """
    owner = module.partition(".")[0]
    return next((name for name, extra in EXTRAS.items() if extra.module == owner), None)


@contextmanager
def needs_extra(extra: str, feature: str) -> Iterator[None]:
    """Turn an import that fails within the block into the sentence that says what to install."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(feature, extra) from None
