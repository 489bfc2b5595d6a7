"""Folders of runs on real devices, read without the devices.

The server of such a run never has the data. Its config may name what the devices have, as in a new app, or anything
else; so the summary records how many samples each device had, and data of other sizes are not taken for theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedprox import data
from fedprox.core.errors import DataError, FedProxError, RunFolderError
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.population import Population
from fedprox.runs.reader import SavedRun
from fedprox.runs.replaced import describe_model

__all__ = ["check_whole_model", "configured_data", "describe_deployed"]


def describe_deployed(population: Population, model: Model, params: Tree, source: str | None) -> dict[str, Any]:
    """Return what the summary records about the devices' data and the model, which the function `source` returned."""
    described = describe_model(model, params)
    return {
        "model": described if source is None else {**described, "object": source},
        "train_samples": np.diff(population.train.offsets).tolist(),
        "test_samples": np.diff(population.test.offsets).tolist(),
    }


def configured_data(run: SavedRun, given: Population | None = None) -> Population:
    """Return the data that the config of a run names.

    Of a run on real devices they are taken for those of the devices only where they have the same sizes; otherwise
    `given` replaces them, or there is an error.
    """
    deployed = (run.summary or {}).get("deployed")
    if deployed is None:
        try:
            return data.load(run.config)
        except DataError as error:
            raise DataError(f"the data of run {run.path} cannot be loaded: {error}") from None
    try:
        found = data.load(run.config)
        problem = _different_sizes(found, deployed)
    except FedProxError as error:  # the module of an app that is not here, for example
        problem = str(error)
    if problem is None:
        return found
    if given is not None:
        return given
    raise RunFolderError(
        f"{run.path} was made on real devices, and `data.name` = {run.config.data.name!r} does not give their data "
        f"here: {problem}; run this in the folder of the app, or give the data from Python, as `population=`"
    )


def check_whole_model(run: SavedRun) -> None:
    """Refuse a folder without the personal parameters, which real devices keep to themselves."""
    if "deployed" in (run.summary or {}) and run.config.personal.parameters:
        raise RunFolderError(
            f"{run.path} was made on real devices, which keep `personal.parameters`, so the folder has no complete "
            "model; evaluation.jsonl has what each device measured"
        )


def _different_sizes(found: Population, deployed: dict[str, Any]) -> str | None:
    sizes = [_sizes(found.train.offsets), _sizes(found.test.offsets)]
    expected = [list(deployed.get("train_samples", ())), list(deployed.get("test_samples", ()))]
    if sizes == expected:
        return None
    if len(sizes[0]) != len(expected[0]):
        return f"it has {len(sizes[0])} devices, and there were {len(expected[0])}"
    pairs = list(zip(zip(*sizes, strict=True), zip(*expected, strict=True), strict=True))
    device = next(number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
    (train, test), (train_there, test_there) = pairs[device]
    return f"device {device} has {train} training and {test} test samples in it, and had {train_there} and {test_there}"


def _sizes(offsets: Sequence[int] | np.ndarray[Any, Any]) -> list[int]:
    return [int(size) for size in np.diff(offsets)]
