"""How heterogeneous a population is, before any training: sizes, labels, and how much the devices disagree.

At the initial model w^0: B(w^0) of Definition 3 and the variance E_k ||grad F_k - grad f||^2, with masses p_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedprox.core.compilation import prepare
from fedprox.core.threads import Workers
from fedprox.core.trees import to_numpy
from fedprox.data.table1 import Statistics, statistics
from fedprox.measures import Measurer
from fedprox.models import Model
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples

__all__ = ["Heterogeneity", "examine", "plot_heterogeneity"]

_MOST_DRAWN = 200  # devices whose labels are drawn one by one
_MOST_NAMED = 20  # labels that have a tick each


@dataclass(frozen=True)
class Heterogeneity:
    """The result of `examine`."""

    statistics: Statistics
    train_samples: int
    test_samples: int
    without_test: int  # devices that have no test data
    labels_per_device: float | None  # the mean number of different training labels
    dissimilarity: float | None = None  # B(w^0)
    gradient_variance: float | None = None


def examine(
    population: Population, model: Model | None = None, *, measured: int = 1000, seed: int = 0
) -> Heterogeneity:
    """Return the statistics of a population, and with a model B and the gradient variance at its initial parameters.

    Gradients are taken over all devices up to `measured`, and over a fixed sample of that size beyond.

    >>> from fedprox.data import synthetic
    >>> examine(synthetic(1.0, 1.0)).statistics.devices
    30
    """
    sizes, tests = np.diff(population.train.offsets), np.diff(population.test.offsets)
    found = Heterogeneity(
        statistics(sizes + tests),
        len(population.train),
        len(population.test),
        int((tests == 0).sum()),
        float((label_counts(population, measured) > 0).sum(axis=1).mean()) if population.classes else None,
    )
    if model is None:
        return found
    prepare()
    workers = Workers()
    try:
        measurer = Measurer(
            population, LoadedSamples.of(population.train, model), model, workers, seed=seed, sample=measured
        )
        measures = measurer.measure(to_numpy(model.init(jax.random.key(seed))))
    finally:
        workers.close()
    return replace(found, dissimilarity=measures.dissimilarity, gradient_variance=measures.gradient_variance)


def label_counts(population: Population, most: int) -> NDArray[np.int64]:
    """Return (devices, classes): how often each label occurs, for at most `most` devices spread evenly."""
    chosen = np.unique(np.linspace(0, population.devices - 1, min(most, population.devices)).astype(int))
    return np.array([np.bincount(population.train.of(int(k))[1], minlength=population.classes) for k in chosen])


def plot_heterogeneity(population: Population, found: Heterogeneity, title: str = "") -> Figure:
    """Draw samples per device, labels per device, and the measures of disagreement."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    left, middle, *right = figure.subplots(1, 4, width_ratios=(3, 4, 1, 1))
    sizes = np.diff(population.train.offsets) + np.diff(population.test.offsets)
    _plot_sizes(left, sizes)
    if population.classes:
        counts = label_counts(population, _MOST_DRAWN)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        image = middle.imshow(shares.T, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=1)
        middle.set(xlabel=f"devices ({len(counts)} of {population.devices})", ylabel="label")
        if population.classes <= _MOST_NAMED:
            names = population.labels or range(population.classes)
            middle.set_yticks(range(population.classes), [str(name) for name in names])
        middle.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, ax=middle, label="share of the device's samples")
    else:
        middle.axis("off")
        middle.text(0.5, 0.5, "y is not a label", ha="center")
    values = {"B": found.dissimilarity, "gradient\nvariance": found.gradient_variance}
    for axes, (name, value) in zip(right, values.items(), strict=True):  # of different units, so not on one axis
        height = value if value is not None and np.isfinite(value) else 0.0
        axes.bar_label(axes.bar([name], [height]), [f"{height:.3g}" if height else "not measured"])
        axes.set(xlabel="at w$^0$")
    for axes in (left, *right):
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title)
    return figure


def _plot_sizes(axes: Axes, sizes: NDArray[np.int64]) -> None:
    """Draw a histogram of the devices' sizes: by their logarithm, unless they are too close together for its ticks."""
    least, most = max(int(sizes.min()), 1), int(sizes.max())
    wide = most >= 10 * least
    width = max((most - least) // 40, 1)
    even = np.arange(least, most + width + 1, width) - 0.5
    axes.hist(sizes, bins=(np.geomspace(least, most + 1, 40) if wide else even).tolist())
    axes.set(xlabel="samples of a device", ylabel="devices")
    if wide:
        axes.set(xscale="log")
    else:
        axes.set(xlim=(least - 1.5, most + 1.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
