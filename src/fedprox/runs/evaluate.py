"""A saved model on data: its loss and accuracy, or its predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox import data
from fedprox.config import Config, with_overrides
from fedprox.core.compilation import compiled, prepare
from fedprox.core.errors import ConfigError, DataError, RunFolderError
from fedprox.core.files import read_tensors
from fedprox.core.threads import Workers
from fedprox.core.trees import Tree, to_numpy, unflatten_names
from fedprox.measures import Measurer
from fedprox.methods import Method
from fedprox.models import Model
from fedprox.population import Population
from fedprox.population.labels import Labels, decode
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.population.renumbered import aligned, targets
from fedprox.runs.deployed import check_whole_model, configured_data
from fedprox.runs.examples import column_roles
from fedprox.runs.own_models import choose_device_model, read_own_models, read_personal_models
from fedprox.runs.reader import SavedRun, load_run
from fedprox.runs.replaced import Replaced, check_present, check_replaced, describe_parts

__all__ = ["data_settings", "evaluate", "predict"]

_ROWS = 4096  # predicted at a time


def evaluate(
    path: str | Path,
    population: Population | None = None,
    *,
    model: Model | None = None,
    method: Method | None = None,
    device: int | None = None,
) -> dict[str, Any]:
    """Measure the final model of a run folder on `population`, by default on the run's own data.

    Data, a model and a method that were given to `train` as objects are given again. With `[personal]` each device is
    measured with its own model on the run's own data; on other data a `device` must be named, whose model is measured
    on all of them. Where devices have a second, personal model, it is measured besides the shared one, or in its place
    with `device`. Returns `train_loss`, `train_accuracy`, `test_loss`, `test_accuracy` (over all examples of that
    part), and `devices`: one record per device, as in evaluation.jsonl. Labels of other data are numbered as the run
    numbered its own.
    """
    prepare()
    run = load_run(path)
    check_present(path, _parts(run, "data", "model"), {"data": population, "model": model})
    check_whole_model(run)
    is_own = population is None or "data" in run.replaced
    known = population if "data" in run.replaced else configured_data(run, population)
    if known is None:
        raise RunFolderError(f"{path} has no data of its own that can be loaded")
    labels = _labels(run)
    if "data" in run.replaced:
        known = population = aligned(known, labels, known.classes if labels is None else len(labels))
    population = known if population is None else _as_trained(aligned(population, labels, known.classes), known)
    model, params = _model(run, known, population.shape, population.classes, model)
    own = read_own_models(run, model, params, method)
    personal = read_personal_models(run, model, params, method)
    if device is not None:
        params, own = choose_device_model(run, params, own if personal is None else personal, device), {}
    elif own is not None and not is_own:
        raise _device_needed(run)
    if model.predict is None:
        population = targets(population)
    workers = Workers(run.config.engine.local_workers)
    try:
        measurer = Measurer(population, LoadedSamples.of(population.train, model), model, workers, gradients=False)
        rows = measurer.per_device(params, own, personal if device is None and is_own else None)
    finally:
        workers.close()
    result: dict[str, Any] = {"examples": len(population.train) + len(population.test)}
    for part in ("train", "test"):
        sizes = np.array([row[f"{part}_samples"] for row in rows])
        for name in ("loss", "accuracy"):
            values = [row[f"{part}_{name}"] for row in rows]
            numbers = [0.0 if value is None else value for value in values]
            total = sizes.sum()
            missing = not total or any(value is None for value, size in zip(values, sizes, strict=True) if size)
            result[f"{part}_{name}"] = None if missing else float(sizes @ np.array(numbers) / total)
    return {**result, "devices": [{**row, "name": population.name(row["device"])} for row in rows]}


def predict(
    path: str | Path,
    x: NDArray[Any],
    *,
    population: Population | None = None,
    model: Model | None = None,
    method: Method | None = None,
    device: int | None = None,
) -> NDArray[Any]:
    """Return the label that the final model of a run folder gives each example of `x` (rows, ...).

    Data, a model and a method that were given to `train` as objects are given again; with a model the data are not
    needed. With `[personal]` the model is that of a `device`; where devices have a second, personal model, `device`
    names the one that is meant. Labels have the names that they have in the run's data.
    """
    prepare()
    x = np.asarray(x)
    if x.ndim < 2 or not len(x):
        raise DataError(f"x must have rows and features, and at least one row; got shape {x.shape}")
    run = load_run(path)
    needed = ("model",) if model is not None else ("data", "model")
    check_present(path, _parts(run, *needed), {"data": population, "model": model})
    check_whole_model(run)
    known = population
    if known is None and "data" not in run.replaced and not (model is not None and "deployed" in (run.summary or {})):
        known = configured_data(run)
    model, params = _model(run, known, x.shape[1:], 0, model)
    if not _are_integers(x) or (known is not None and not _are_integers(known.train.x)):
        x = x.astype(np.float32)
    if model.predict is None:
        raise RunFolderError(f"the model {model.name} of {path} gives no labels")
    own = read_own_models(run, model, params, method)
    if device is not None:
        personal = read_personal_models(run, model, params, method)
        params = choose_device_model(run, params, own if personal is None else personal, device)
    elif own is not None:
        raise _device_needed(run)
    if model.host is not None:
        with model.host.at(params) as at:
            return decode(at.predictions(x), _labels(run))
    classify = compiled(model.predict)
    classes = np.concatenate([np.asarray(classify(params, x[i : i + _ROWS])) for i in range(0, len(x), _ROWS)])
    return decode(classes, _labels(run))


def _are_integers(x: NDArray[Any]) -> bool:
    return np.issubdtype(x.dtype, np.integer)


def _as_trained(population: Population, known: Population) -> Population:
    """Return other data with numbers of the kind that the model was trained on: a module may scale bytes itself."""
    if _are_integers(known.train.x) or not _are_integers(population.train.x):
        return population
    train, test = (replace(each, x=each.x.astype(np.float32)) for each in (population.train, population.test))
    return replace(population, train=train, test=test, folder="")


def _device_needed(run: SavedRun) -> ConfigError:
    return ConfigError(f"`device` must be given for {run.path}, whose devices have models of their own; got none")


def data_settings(run: str | Path, source: str, overrides: list[str]) -> Config:
    """Return the run's config with its `[data]` replaced by what `source` names: a file, a folder or a data set.

    The ending of a file says what it is (npz, csv, parquet, arrow, feather); a folder with `train` and `test` in it is
    a LEAF folder. A table's columns have the names that they have in the run's own data. Other data have the default
    `[compat]`, unless an override says otherwise.
    """
    config = load_run(run).config
    settings = config.to_dict()
    if source:
        settings["data"] = data.find_settings(source)
        if settings["data"]["name"] in ("csv", "arrow"):
            settings["data"] |= {key: value for key, value in column_roles(config).items() if value}
        del settings["compat"]
    return Config.from_dict(with_overrides(settings, overrides))


def _labels(run: SavedRun) -> Labels:
    """Return the names of the run's classes, which are stored with the model."""
    file = run.path / "model.safetensors"
    values = read_tensors(file)[1] if file.exists() else None
    labels = (values or {}).get("labels")
    return None if labels is None else tuple(labels)


def _parts(run: SavedRun, *parts: str) -> Replaced:
    return {part: record for part, record in run.replaced.items() if part in parts}


def _model(
    run: SavedRun, known: Population | None, shape: tuple[int, ...], classes: int, model: Model | None
) -> tuple[Model, Tree]:
    """Return the run's model with its saved parameters; examples and labels must be as in the data it knows."""
    file = run.path / "model.safetensors"
    if not file.exists():
        raise RunFolderError(f"{run.path} holds no model.safetensors yet; the run has not ended")
    named, _ = read_tensors(file)
    if known is not None and known.shape != shape:
        raise DataError(f"x must have examples of shape {known.shape}, as the run's data; got {shape}")
    if known is not None and classes > known.classes:
        raise DataError(f"labels must be below {known.classes}, the number the model knows; got {classes - 1}")
    if model is None and known is not None:
        model = data.model_for(run.config, known)
    if model is None:
        raise RunFolderError(f"{run.path} has no model of its own that can be built")
    initial = _shapes(model)
    if "model" in run.replaced:
        check_replaced(run.path, _parts(run, "model"), describe_parts({"model": model}, initial))
    try:
        return model, unflatten_names(named, like=initial)
    except ValueError as error:
        raise RunFolderError(f"{file} does not fit the model {model.name}: {error}") from None


def _shapes(model: Model) -> Tree:
    import jax

    return to_numpy(model.init(jax.random.key(0)))
