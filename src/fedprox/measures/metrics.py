"""Custom metrics: any function of labels and predictions, measured whenever the loss is.

    def f1(labels, predictions): ...        # two arrays, one entry per example -> a number, or a dict of numbers

Labels and predictions are those of all test examples, pooled over the devices (of the training examples where there is
no test data); the examples of a device with its own model are predicted by that model. From a config,
`measure.metrics = ["mine:f1"]`; from Python, `train(…, metrics={"f1": f1})`. The number is written to `metrics.jsonl`
as `f1`; the entry `macro` of a dict as `f1_macro`.

A real device computes a metric over its own examples; the values are averaged with weights n_k, or added up where the
function has the attribute `adds_up = True`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.config import MeasureConfig
from fedprox.config.parts import find_part
from fedprox.core.compilation import compiled
from fedprox.core.errors import ConfigError, RunError, short
from fedprox.core.metric_columns import RESERVED_NAMES
from fedprox.core.own_code import own_code
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.population import Population

__all__ = ["Metric", "Metrics", "build_metrics"]

Metric = Callable[[NDArray[Any], NDArray[Any]], Any]
"""A function of labels and predictions that returns a number, or a dict of numbers."""

_ROWS = 4096  # predicted at a time


class Metrics:
    """Metrics by name, on the test examples of a population."""

    def __init__(self, metrics: Mapping[str, Metric], model: Model, population: Population) -> None:
        if metrics and model.predict is None:
            raise ConfigError(f"`measure.metrics` must be used with a model that predicts; {model.name!r} does not")
        self._metrics = metrics
        self._samples = population.test if len(population.test) else population.train
        self._predict = compiled(model.predict) if metrics and model.predict is not None else None

    def measure(self, params: Tree, own: Mapping[int, Tree] | None = None) -> dict[str, float | None]:
        """Return every metric of a model, None where it is not finite; `own` are models of some devices."""
        if self._predict is None:
            return {}
        y, predictions = np.asarray(self._samples.y).view(), self._predictions(self._predict, params, own or {})
        for array in (y, predictions):  # several metrics read them, and y is the data itself
            array.setflags(write=False)
        found: dict[str, float | None] = {}
        for name, metric in self._metrics.items():
            with own_code(f"the metric {name!r}"):
                value = metric(y, predictions)
            named = (
                {f"{name}_{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
            )
            found |= {key: _number(key, each) for key, each in named.items()}
        return found

    def _predictions(self, predict: Callable[..., Any], params: Tree, own: Mapping[int, Tree]) -> NDArray[Any]:
        """Return the prediction of every example: of the devices in `own` by their models, of all others by one."""
        x, offsets = self._samples.x, self._samples.offsets
        found = [np.asarray(predict(params, x[i : i + _ROWS])) for i in range(0, len(x), _ROWS)]
        predictions = np.concatenate(found).copy()
        for device, model in own.items():
            begin, end = int(offsets[device]), int(offsets[device + 1])
            for i in range(begin, end, _ROWS):
                rows = min(_ROWS, end - i)
                padded = x[np.minimum(np.arange(i, i + _padded(rows)), end - 1)]  # few sizes, so few compilations
                predictions[i : i + rows] = np.asarray(predict(model, padded))[:rows]
        return predictions


def build_metrics(config: MeasureConfig, given: Mapping[str, Metric] | None = None) -> dict[str, Metric]:
    """Return the metrics that the config names, by the name of their function, and those `given` from Python."""
    metrics: dict[str, Metric] = {}
    for name in config.metrics:
        value = find_part("metrics", name, "measure.metrics")
        metric = value() if isinstance(value, type) else value
        if not callable(metric):
            raise ConfigError(f"`measure.metrics` must name functions of labels and predictions; got {name!r}")
        _add(metrics, name.rpartition(":")[2].rpartition(".")[2], metric)
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"`metrics` must be a dict of functions by name; got {short(given)}")
    for name, metric in (given or {}).items():
        if not callable(metric):
            raise ConfigError(f"`metrics` must hold functions of labels and predictions; got {metric!r} for {name!r}")
        _add(metrics, name, metric)
    return metrics


def _padded(rows: int) -> int:
    """Return the power of two, at least 32, to which a number of rows is padded.

    >>> _padded(5), _padded(33)
    (32, 64)
    """
    return max(32, 1 << (rows - 1).bit_length())


def _add(metrics: dict[str, Metric], name: str, metric: Metric) -> None:
    if name in metrics or name in RESERVED_NAMES:
        raise ConfigError(f"`measure.metrics` must have different names; got a second {name!r}")
    metrics[name] = metric


def _number(name: str, value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RunError(f"the metric {name!r} must return a number, or a dict of numbers; got {short(value)}") from None
    return number if math.isfinite(number) else None
