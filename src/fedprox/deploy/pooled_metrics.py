"""Metrics of `measure.metrics` over real devices: each computes them, the server pools the numbers.

A device computes a metric over its test samples. The values are averaged with weights n_k, or added up where the metric
has the attribute `adds_up = True`. Where no device has test samples, they are over training samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedprox.deploy.message_records import bounded
from fedprox.deploy.messages import Evaluation
from fedprox.measures.metrics import Metric

__all__ = ["pool_metrics", "wrong_metrics"]

_MOST = 1000  # numbers that are read of one report


def wrong_metrics(reported: Mapping[str, float], metrics: Iterable[str]) -> str | None:
    """Return why the metrics of a report cannot be counted, or None; `metrics` are the names of those asked for.

    >>> wrong_metrics({"f1": 0.5}, ["f1"]), wrong_metrics({"f2": 0.5}, ["f1"])
    (None, "it reports the metric 'f2', which is not in `measure.metrics`")
    """
    names = list(metrics)
    if len(reported) > _MOST:
        return f"it reports {len(reported)} metrics; at most {_MOST} are read"
    for name, value in reported.items():
        if _matching_metric(name, names) is None:
            return f"it reports the metric {bounded(name)!r}, which is not in `measure.metrics`"
        if math.isinf(value):
            return f"its metric {bounded(name)!r} is infinite"
    return None


def pool_metrics(reports: Sequence[Evaluation], metrics: Mapping[str, Metric]) -> dict[str, float | None]:
    """Return each metric over the devices that have a value of it; None where none has."""
    tested = [one for one in reports if one.test_samples] or reports
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for one in tested for name in one.metrics):
        known = [one for one in tested if not math.isnan(one.metrics.get(name, math.nan))]
        values = np.array([one.metrics[name] for one in known])
        sizes = np.array([one.test_samples or one.train_samples for one in known], np.float64)
        adds_up = getattr(metrics[str(_matching_metric(name, metrics))], "adds_up", False)
        value = float(values.sum() if adds_up else sizes @ values / sizes.sum()) if known else math.nan
        found[name] = value if math.isfinite(value) else None
    return found


def _matching_metric(name: str, metrics: Iterable[str]) -> str | None:
    """Return the metric that a reported number belongs to: the one of its name, or the one whose dict it is from."""
    names = list(metrics)
    return name if name in names else next((each for each in names if name.startswith(f"{each}_")), None)
