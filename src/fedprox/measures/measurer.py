"""What is measured of a model: loss, accuracy, and how much the devices disagree.

    f(w)     = sum_k p_k F_k(w)                                             (Equation 1)
    variance = E_k ||grad F_k(w) - grad f(w)||^2 = E_k ||grad F_k(w)||^2 - ||grad f(w)||^2
    B(w)     = sqrt( E_k ||grad F_k(w)||^2 / ||grad f(w)||^2 )              (Definition 3)

with E_k over devices with masses p_k. B = 1 where E_k ||grad F_k||^2 = ||grad f||^2 (the definition's exception), and
infinite at a stationary point of f that the devices do not agree on. Accuracies are pooled over all examples.

The paper's released code takes E_k as a plain mean over devices, around the same grad f (`[compat]`). With g the plain
mean of the grad F_k the variance is then E_k ||grad F_k||^2 - 2 <g, grad f> + ||grad f||^2, and B may be below 1.

Everything comes out of one pass over the data (`data_pass`). Measured over a sample of the devices, all of
it is estimated, and variance and B have confidence intervals (`sample_error`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedprox.core.threads import Workers
from fedprox.core.trees import Tree, inner_product, quiet, squared_norm
from fedprox.measures.data_pass import DataPass, PerDevice, take_passes
from fedprox.measures.measured_sample import all_devices, draw_measured
from fedprox.measures.metrics import Metrics
from fedprox.measures.sample_error import Interval, Totals, interval
from fedprox.models import Model
from fedprox.population import Population, Samples
from fedprox.population.loaded_samples import LoadedSamples

__all__ = ["Measurer", "Measures", "Measuring", "add_personal", "dissimilarity"]


@dataclass(frozen=True)
class Measures:
    """The measures of one model over the measured devices; None where there is nothing to measure."""

    train_loss: float
    train_accuracy: float | None
    test_accuracy: float | None
    gradient_variance: float | None = None
    dissimilarity: float | None = None
    gradient_variance_interval: Interval | None = None  # for all devices, when a sample of them was measured
    dissimilarity_interval: Interval | None = None
    own: Mapping[str, float | None] = field(default_factory=dict)  # the user's metrics
    reports: int | None = None  # how many devices have measured, where they do it themselves
    trimmed_loss: float | None = None  # then: without the largest and smallest reports


class Measuring(Protocol):
    """Measures models: over local data (`Measurer`), or from the reports of real devices."""

    def compile(self, params: Tree) -> None:
        """Prepare for the first model."""

    def measure(self, params: Tree, own: Mapping[int, Tree] | None = None) -> Measures | None:
        """Return the measures of a model, None if it cannot be measured; some devices may have their own."""

    def losses_of(
        self, params: Tree, devices: NDArray[np.int64], own: Mapping[int, Tree] | None = None
    ) -> dict[int, float]:
        """Return F_k at a model for some devices; a device without a known loss is left out."""

    def personal_accuracies(self, params: Tree, personal: Mapping[int, Tree]) -> dict[str, float | None]:
        """Return columns with the accuracy of the devices' second models, and of w^t on devices that have none."""

    def per_device(
        self, params: Tree, own: Mapping[int, Tree] | None = None, personal: Mapping[int, Tree] | None = None
    ) -> list[dict[str, Any]]:
        """Return one record per measured device: samples, loss and accuracy on training and test data.

        `personal` are second models of devices, whose loss and accuracy are added.
        """


class Measurer:
    """Measures models on a population, over all its devices or a fixed sample of them."""

    def __init__(
        self,
        population: Population,
        train: LoadedSamples,
        model: Model,
        workers: Workers,
        *,
        seed: int = 0,
        sample: int = 0,
        gradients: bool = True,
        weighted: bool = True,
        metrics: Metrics | None = None,
    ) -> None:
        measured = all_devices(population.devices)
        if 0 < sample < population.devices:
            measured = draw_measured(np.diff(population.train.offsets), sample, seed)
        devices = measured.devices
        population.check(devices if len(devices) < population.devices else None, test=True)
        self.devices = devices
        self._unseen = measured.unseen
        self._model = model
        self._gradients = gradients
        self._weighted = weighted
        self._workers = workers
        self._metrics = metrics
        self._samples, self._data = population.train, train
        self._losses = DataPass(population.train, train, measured, model)
        self._train = self._losses
        if gradients:
            self._train = DataPass(population.train, train, measured, model, gradients=True, plain=not weighted)
        self._with_test = np.diff(population.test.offsets)[devices] > 0
        with_test = replace(measured, devices=devices[self._with_test], weight=measured.weight[self._with_test])
        self._test = DataPass(population.test, LoadedSamples.of(population.test, model), with_test, model)
        aside = {"validation": population.validation, "holdout": population.holdout}
        self._aside = {name: _whole_pass(samples, model) for name, samples in aside.items() if samples is not None}

    def compile(self, params: Tree) -> None:
        """Compile the passes by running them over no devices."""
        for each in (self._train, self._test, *self._aside.values()):
            each.compile(params)

    @quiet
    def measure(self, params: Tree, own: Mapping[int, Tree] | None = None) -> Measures:
        """Measure a model; `own` are models that some devices are measured with in its place."""
        train, test = take_passes((self._train, self._test), params, self._workers, own)
        total = (train.weight * train.samples).sum()
        variance = b = variance_interval = b_interval = None
        if self._gradients:
            variance, b = _weighted_spread(train) if self._weighted else _plain_spread(train)
            if train.of_groups is not None and self._weighted:
                variance_interval, b_interval = _intervals(train.of_groups, self._unseen)
        return Measures(
            train_loss=float((train.weight * train.loss).sum() / total),
            train_accuracy=self._accuracy(train),
            test_accuracy=self._accuracy(test),
            gradient_variance=variance,
            dissimilarity=b,
            gradient_variance_interval=variance_interval,
            dissimilarity_interval=b_interval,
            own={**self._measure_aside(params, own), **(self._metrics.measure(params, own) if self._metrics else {})},
        )

    @quiet
    def personal_accuracies(self, params: Tree, personal: Mapping[int, Tree]) -> dict[str, float | None]:
        """Return the accuracy of the devices' second models on test and validation samples."""
        passes = {"test": self._test, **{name: each for name, each in self._aside.items() if name == "validation"}}
        found = take_passes(tuple(passes.values()), params, self._workers, personal)
        return {f"personal_{name}_accuracy": self._accuracy(sums) for name, sums in zip(passes, found, strict=True)}

    def _measure_aside(self, params: Tree, own: Mapping[int, Tree] | None) -> dict[str, float | None]:
        """Return loss and accuracy on what training never sees: validation samples and held-out devices.

        Held-out devices are numbered apart, and have no models of their own.
        """
        found: dict[str, float | None] = {}
        for name, each in self._aside.items():
            (sums,) = take_passes((each,), params, self._workers, own if name == "validation" else None)
            loss = float(sums.loss.sum() / sums.samples.sum())
            found[f"{name}_loss"] = loss if math.isfinite(loss) else None
            found[f"{name}_accuracy"] = self._accuracy(sums) if math.isfinite(loss) else None
        return found

    @quiet
    def losses_of(
        self, params: Tree, devices: NDArray[np.int64], own: Mapping[int, Tree] | None = None
    ) -> dict[int, float]:
        """Return F_k at a model for some devices, at a cost that does not grow with the others."""
        count = len(devices)
        if not count:
            return {}
        most = 1 << (count - 1).bit_length()  # few lengths, so that few programs are compiled
        filled = np.concatenate([devices, np.repeat(devices[:1], most - count)])
        found = DataPass(self._samples, self._data, replace(all_devices(most), devices=filled), self._model)
        (train,) = take_passes((found,), params, self._workers, own)
        return dict(zip(devices.tolist(), (train.loss / train.samples)[:count].tolist(), strict=True))

    def per_device(
        self, params: Tree, own: Mapping[int, Tree] | None = None, personal: Mapping[int, Tree] | None = None
    ) -> list[dict[str, Any]]:
        """Return one record per measured device: samples, loss and accuracy on training and test data."""
        if personal is not None:
            return add_personal(self.per_device(params, own), self.per_device(params, personal))
        train, tested = take_passes((self._losses, self._test), params, self._workers, own)
        test_at = np.cumsum(self._with_test) - 1
        records = []
        for position in np.argsort(self.devices):
            record: dict[str, Any] = {"device": int(self.devices[position])}
            for part, sums, at in (
                ("train", train, position),
                ("test", tested, test_at[position] if self._with_test[position] else -1),
            ):
                samples = int(sums.samples[at]) if at >= 0 else 0
                loss = float(sums.loss[at]) / samples if samples else None
                known = loss is not None and math.isfinite(loss) and self._model.predict is not None
                record[f"{part}_samples"] = samples
                record[f"{part}_loss"] = loss
                record[f"{part}_accuracy"] = int(sums.correct[at]) / samples if known else None
            records.append(record)
        return records

    def _accuracy(self, sums: PerDevice) -> float | None:
        if not sums.samples.any() or self._model.predict is None:
            return None
        return float((sums.weight * sums.correct).sum() / (sums.weight * sums.samples).sum())


def _whole_pass(samples: Samples, model: Model) -> DataPass:
    """Return a pass over all devices that have samples."""
    with_samples = np.flatnonzero(np.diff(samples.offsets))
    measured = replace(all_devices(len(with_samples)), devices=with_samples)
    return DataPass(samples, LoadedSamples.of(samples, model), measured, model)


def add_personal(rows: list[dict[str, Any]], personal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records per device, extended by the results of their second models.

    >>> add_personal([{"device": 3, "test_samples": 2, "test_loss": 0.5}], [{"test_samples": 2, "test_loss": 0.25}])
    [{'device': 3, 'test_samples': 2, 'test_loss': 0.5, 'personal_test_loss': 0.25}]
    """
    return [
        {**row, **{f"personal_{key}": value for key, value in own.items() if key.endswith(("_loss", "_accuracy"))}}
        for row, own in zip(rows, personal, strict=True)
    ]


def dissimilarity(mean_norm2: float, norm2_of_mean: float) -> float:
    """Return B(w) from E_k ||grad F_k||^2 and ||grad f||^2, with the exception of Definition 3.

    >>> dissimilarity(8.0, 2.0), dissimilarity(0.0, 0.0), dissimilarity(1.0, 0.0)
    (2.0, 1.0, inf)
    """
    if mean_norm2 <= norm2_of_mean:
        return 1.0
    return math.sqrt(mean_norm2 / norm2_of_mean) if norm2_of_mean > 0 else math.inf


def _weighted_spread(train: PerDevice) -> tuple[float, float]:
    """Return the gradient variance and B, with masses p_k."""
    masses = train.weight * train.samples
    total = float(masses.sum())
    mean_norm2 = float(masses @ train.gradient_norm2) / total
    norm2_of_mean = squared_norm(train.gradient) / total**2
    return max(mean_norm2 - norm2_of_mean, 0.0), dissimilarity(mean_norm2, norm2_of_mean)


def _plain_spread(train: PerDevice) -> tuple[float, float]:
    """Return the gradient variance and B as plain means over devices."""
    total, devices = float((train.weight * train.samples).sum()), float(train.weight.sum())
    mean_norm2 = float(train.weight @ train.gradient_norm2) / devices
    norm2_of_mean = squared_norm(train.gradient) / total**2
    product = inner_product(train.plain_gradient, train.gradient) / (devices * total)
    variance = max(mean_norm2 - 2 * product + norm2_of_mean, 0.0)
    if mean_norm2 < norm2_of_mean:  # possible only for a plain mean
        return variance, math.sqrt(mean_norm2 / norm2_of_mean)
    return variance, dissimilarity(mean_norm2, norm2_of_mean)


def _intervals(totals: Totals, unseen: float) -> tuple[Interval | None, Interval | None]:
    """Return the intervals of the gradient variance and of B, computed for log B^2, whose errors are symmetric."""
    variance = interval(totals, lambda mean_norm2, norm2_of_mean: mean_norm2 - norm2_of_mean, unseen)
    log_b2 = interval(totals, lambda mean_norm2, norm2_of_mean: np.log(mean_norm2 / norm2_of_mean), unseen)
    return (
        variance and Interval(max(variance.low, 0.0), max(variance.high, 0.0)),
        log_b2 and Interval(math.exp(max(log_b2.low, 0.0) / 2), math.exp(max(log_b2.high, 0.0) / 2)),
    )
