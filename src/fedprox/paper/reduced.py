"""Smaller populations for the smaller scales, written once into the folder of the experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import DataError
from fedprox.core.randomness import Purpose, words
from fedprox.paper.scales import Reduction, Subset
from fedprox.population import Population, Samples
from fedprox.population.folder import read_manifest
from fedprox.population.writer import save_population

__all__ = ["STAND_IN_MODEL", "reduced_folder", "take_subset", "write_reduced"]

STAND_IN_MODEL = "softmax_regression"
_STAND_IN = Subset(devices=12, share=0.1, least=10)


def reduced_folder(out: Path, dataset: str, scale: str) -> Path:
    """Return where the smaller population of a data set lies."""
    return out.resolve() / "data" / f"{dataset}-{scale}"


def write_reduced(dataset: str, reduction: Reduction, folder: Path) -> None:
    """Write the smaller population of a data set, unless it is there; refuse one that was made in another way.

    The runs of a folder are named without the contents of their data, so that these must never change under them.
    """
    sentence = reduction.sentence(dataset)
    if (folder / "manifest.json").exists():
        found = read_manifest(folder)["about"].get("reduction")
        if found != sentence:
            raise DataError(f"{folder} must hold {sentence!r}; it holds {found!r}: choose another `--out`")
        return
    if reduction.is_stand_in:
        population = take_subset(data.synthetic(1.0, 1.0), _STAND_IN)
    elif reduction.subset is not None:
        population = take_subset(data.load(Config.from_dict({"data": {"name": dataset}})), reduction.subset)
    else:
        return
    save_population(population, folder, about={"part of": dataset, "reduction": sentence})


def take_subset(population: Population, subset: Subset, seed: int = 0) -> Population:
    """Return a part of a population: devices drawn at random, and of each a share of its samples, drawn at random.

    A share, rather than a number, keeps the devices as unequal as they are. Test samples are taken in the same share,
    at least a quarter as many as training samples.

    >>> whole = data.synthetic(1.0, 1.0)
    >>> part = take_subset(whole, Subset(devices=5, share=0.1, least=10))
    >>> part.devices, len(part.train) < len(whole.train), part.shape == whole.shape
    (5, True, True)
    """
    order = np.argsort(words(population.devices, seed, Purpose.PAPER_SUBSET), kind="stable")
    devices = np.sort(order[: subset.devices]).tolist()
    train = _part(population.train, devices, subset.share, subset.least, seed, 1)
    test = _part(population.test, devices, subset.share, max(1, subset.least // 4), seed, 2)
    names = [population.name(device) for device in devices]
    return Population(train, test, population.classes, names, population.extras)


def _part(samples: Samples, devices: list[int], share: float, least: int, seed: int, draw: int) -> Samples:
    chosen: list[NDArray[Any]] = []
    for device in devices:
        size = samples.size(device)
        count = min(size, max(least, int(share * size)))
        order = np.argsort(words(size, seed, Purpose.PAPER_SUBSET, round=draw, device=device), kind="stable")
        chosen.append(samples.offsets[device] + np.sort(order[:count]))
    rows = np.concatenate(chosen)
    offsets = np.cumsum([0, *map(len, chosen)])
    return Samples(samples.x[rows], samples.y[rows], offsets)
