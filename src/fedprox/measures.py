"""What is measured of a model: loss, accuracy, and how much the devices disagree.

    f(w)     = sum_k p_k F_k(w)                                             (Equation 1)
    variance = E_k ||grad F_k(w) - grad f(w)||^2 = E_k ||grad F_k(w)||^2 - ||grad f(w)||^2
    B(w)     = sqrt( E_k ||grad F_k(w)||^2 / ||grad f(w)||^2 )              (Definition 3)

with E_k over devices with masses p_k. B = 1 where E_k ||grad F_k||^2 = ||grad f||^2 (the definition's exception), and
infinite at a stationary point of f that the devices do not agree on. Accuracies are pooled over all examples.

Everything comes out of one pass over the data: a compiled loop walks the devices of a group and, within a device, its
rows block by block. How devices are grouped depends on the data alone, never on the number of workers.

Measured over a sample of the devices, variance and B are those of the sample; their confidence intervals are for all
devices (`fedprox.sample_error`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from fedprox.measured_sample import MeasuredSample, all_devices, draw_measured
from fedprox.models import Model, mean_gradient
from fedprox.population import Population, Samples
from fedprox.resident import Resident, resident
from fedprox.runtime import SMALL, Workers, compiled
from fedprox.sample_error import Interval, Totals, interval
from fedprox.subproblem import rows_in_block
from fedprox.trees import Tree, TreeSum, quiet, squared_norm, to_numpy

__all__ = ["Measurer", "Measures", "PerDevice", "dissimilarity"]

_GROUP = 256  # most devices in one call of the compiled loop
_SAMPLE_GROUPS = 20  # of the devices of a sample, for its intervals


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


@dataclass(frozen=True)
class PerDevice:
    """Sums over the samples of each measured device."""

    weight: NDArray[np.float64]  # how many devices each one stands for
    samples: NDArray[np.int64]
    loss: NDArray[np.float64]
    correct: NDArray[np.int64]
    gradient_norm2: NDArray[np.float64]  # ||grad F_k||^2; zeros where gradients were not asked for
    gradient: Tree  # sum_k weight_k n_k grad F_k, or None
    of_groups: Totals | None = None  # the sums over each group of a sample


class Measurer:
    """Measures models on a population, over all its devices or a fixed sample of them."""

    def __init__(
        self,
        population: Population,
        train: Resident,
        model: Model,
        workers: Workers,
        *,
        seed: int = 0,
        sample: int = 0,
        gradients: bool = True,
    ) -> None:
        measured = all_devices(population.devices)
        if 0 < sample < population.devices:
            measured = draw_measured(np.diff(population.train.offsets), sample, seed)
        devices = measured.devices
        self.devices = devices
        self._unseen = measured.unseen
        self._model = model
        self._gradients = gradients
        self._train = _Pass(population.train, train, measured, model, workers)
        self._with_test = np.diff(population.test.offsets)[devices] > 0
        with_test = replace(measured, devices=devices[self._with_test], weight=measured.weight[self._with_test])
        self._test = _Pass(population.test, Resident.of(population.test), with_test, model, workers)

    def compile(self, params: Tree) -> None:
        """Compile the passes by running them over no devices."""
        self._train.compile(params, self._gradients)
        self._test.compile(params, False)

    @quiet
    def measure(self, params: Tree) -> Measures:
        """Measure a model."""
        train = self._train(params, self._gradients)
        test = self._test(params, False)
        masses = train.weight * train.samples
        total = masses.sum()
        variance = b = variance_interval = b_interval = None
        if self._gradients:
            mean_norm2 = float(masses @ train.gradient_norm2) / float(total)
            norm2_of_mean = squared_norm(train.gradient) / float(total) ** 2
            variance, b = max(mean_norm2 - norm2_of_mean, 0.0), dissimilarity(mean_norm2, norm2_of_mean)
            if train.of_groups is not None:
                variance_interval, b_interval = _intervals(train.of_groups, self._unseen)
        return Measures(
            train_loss=float((train.weight * train.loss).sum() / total),
            train_accuracy=self._accuracy(train),
            test_accuracy=self._accuracy(test),
            gradient_variance=variance,
            dissimilarity=b,
            gradient_variance_interval=variance_interval,
            dissimilarity_interval=b_interval,
        )

    def per_device(self, params: Tree) -> list[dict[str, Any]]:
        """Return one record per measured device: samples, loss and accuracy on training and test data."""
        train, tested = self._train(params, False), self._test(params, False)
        test_at = np.cumsum(self._with_test) - 1
        records = []
        for position in np.argsort(self.devices):
            record: dict[str, Any] = {"device": int(self.devices[position])}
            for part, sums, at in (
                ("train", train, position),
                ("test", tested, test_at[position] if self._with_test[position] else -1),
            ):
                samples = int(sums.samples[at]) if at >= 0 else 0
                known = samples > 0 and self._model.predict is not None
                record[f"{part}_samples"] = samples
                record[f"{part}_loss"] = float(sums.loss[at]) / samples if samples else None
                record[f"{part}_accuracy"] = int(sums.correct[at]) / samples if known else None
            records.append(record)
        return records

    def _accuracy(self, sums: PerDevice) -> float | None:
        if not sums.samples.any() or self._model.predict is None:
            return None
        return float((sums.weight * sums.correct).sum() / (sums.weight * sums.samples).sum())


def dissimilarity(mean_norm2: float, norm2_of_mean: float) -> float:
    """Return B(w) from E_k ||grad F_k||^2 and ||grad f||^2, with the exception of Definition 3.

    >>> dissimilarity(8.0, 2.0), dissimilarity(0.0, 0.0), dissimilarity(1.0, 0.0)
    (2.0, 1.0, inf)
    """
    if mean_norm2 <= norm2_of_mean:
        return 1.0
    return math.sqrt(mean_norm2 / norm2_of_mean) if norm2_of_mean > 0 else math.inf


def _intervals(totals: Totals, unseen: float) -> tuple[Interval | None, Interval | None]:
    """Return the intervals of the gradient variance and of B; that of B is made for log B^2, whose errors are even."""
    variance = interval(totals, lambda mean_norm2, norm2_of_mean: mean_norm2 - norm2_of_mean, unseen)
    log_b2 = interval(totals, lambda mean_norm2, norm2_of_mean: np.log(mean_norm2 / norm2_of_mean), unseen)
    return (
        variance and Interval(max(variance.low, 0.0), max(variance.high, 0.0)),
        log_b2 and Interval(math.exp(max(log_b2.low, 0.0) / 2), math.exp(max(log_b2.high, 0.0) / 2)),
    )


class _Pass:
    """One pass over the samples of some devices."""

    def __init__(
        self, samples: Samples, resident: Resident, measured: MeasuredSample, model: Model, workers: Workers
    ) -> None:
        self._resident = resident
        self._model = model
        self._workers = workers
        self._weight = measured.weight
        self._begins = samples.offsets[measured.devices]
        self._sizes = samples.offsets[measured.devices + 1] - self._begins
        certain = min(measured.certain, len(self._sizes))
        self._groups = _groups(self._sizes[:certain]) + _equal_groups(certain, len(self._sizes))
        self._certain = sum(group.stop <= certain for group in self._groups)
        self._is_sample = measured.unseen > 0

    def compile(self, params: Tree, gradients: bool) -> None:
        if len(self._sizes):
            self._run(resident(params), slice(0, 0), gradients)

    def __call__(self, params: Tree, gradients: bool) -> PerDevice:
        loss, correct, norm2 = (np.zeros(len(self._sizes)) for _ in range(3))
        total = TreeSum(len(self._groups))
        gradients_of_groups: dict[int, Tree] = {}
        at = resident(params)
        answers = self._workers.run(
            lambda group: self._run(at, group, gradients),
            self._groups,
            [int(self._sizes[group].sum()) for group in self._groups],
        )
        for index, (losses, corrects, norms2, gradient) in answers:
            group = self._groups[index]
            count = group.stop - group.start
            loss[group], correct[group], norm2[group] = losses[:count], corrects[:count], norms2[:count]
            total.add(index, jax.tree.map(lambda leaf: leaf.astype(np.float64), gradient))
            if gradients and self._is_sample:
                gradients_of_groups[index] = gradient
        whole = total.result() if gradients and self._groups else None
        of_groups = self._totals(norm2, gradients_of_groups) if gradients_of_groups else None
        return PerDevice(self._weight, self._sizes, loss, correct.astype(np.int64), norm2, whole, of_groups)

    def _totals(self, norm2: NDArray[np.float64], gradients: dict[int, Tree]) -> Totals:
        masses = self._weight * self._sizes
        return Totals(
            samples=np.array([masses[group].sum() for group in self._groups]),
            norm2=np.array([masses[group] @ norm2[group] for group in self._groups]),
            gradient=[gradients[index] for index in range(len(self._groups))],
            certain=self._certain,
        )

    def _run(self, params: Tree, group: slice, gradients: bool) -> Any:
        begins, sizes, weights = (np.zeros(_GROUP, kind) for kind in (np.int32, np.int32, np.float32))
        count = group.stop - group.start
        begins[:count], sizes[:count], weights[:count] = self._begins[group], self._sizes[group], self._weight[group]
        program = _program(self._model, self._resident.block, gradients)
        return to_numpy(program(params, self._resident.x, self._resident.y, begins, sizes, weights, np.int32(count)))


@lru_cache(maxsize=32)
def _program(model: Model, block: int, gradients: bool) -> Callable[..., Any]:
    """Return the compiled pass over a group of devices.

    `program(params, x, y, begins, sizes, weights, count) -> (losses, correct, norms2, gradient)` with one entry per
    device in the first three and the weighted sum of all samples' gradients in the last.
    """

    def program(
        params: Tree,
        x: jax.Array,
        y: jax.Array,
        begins: jax.Array,
        sizes: jax.Array,
        weights: jax.Array,
        count: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array, Tree]:
        zero = jax.tree.map(jnp.zeros_like, params) if gradients else ()

        def over_blocks(begin: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, Tree]:
            def add_block(i: jax.Array, sums: tuple[jax.Array, jax.Array, Tree]) -> tuple[jax.Array, jax.Array, Tree]:
                loss, correct, gradient = sums
                xs, ys, inside = rows_in_block(x, y, begin + i * block, begin + size, block)
                loss += jnp.sum(jnp.where(inside, model.loss(params, xs, ys), 0.0))
                if model.predict is not None:
                    correct += jnp.sum(inside & (model.predict(params, xs) == ys))
                if gradients:
                    more = mean_gradient(model, params, xs, ys, inside.astype(loss.dtype))
                    gradient = jax.tree.map(jnp.add, gradient, more)
                return loss, correct, gradient

            return lax.fori_loop(0, -(-size // block), add_block, (jnp.float32(0), jnp.int32(0), zero))

        def add_device(k: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            losses, corrects, norms2, total = sums
            loss, correct, gradient = over_blocks(begins[k], sizes[k])
            norm2 = sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)), start=jnp.float32(0))
            size = sizes[k].astype(jnp.float32)
            return (
                lax.dynamic_update_index_in_dim(losses, loss, k, 0),
                lax.dynamic_update_index_in_dim(corrects, correct, k, 0),
                lax.dynamic_update_index_in_dim(norms2, norm2 / (size * size), k, 0),
                jax.tree.map(lambda so_far, leaf: so_far + weights[k] * leaf, total, gradient),
            )

        nothing = (jnp.zeros(_GROUP), jnp.zeros(_GROUP, jnp.int32), jnp.zeros(_GROUP), zero)
        return lax.fori_loop(0, count, add_device, nothing)

    return compiled(program, small=model.small and block <= SMALL)


def _groups(sizes: NDArray[np.int64]) -> list[slice]:
    """Divide devices into runs of at most _GROUP devices and about a sixteenth of the samples (not too few) each."""
    groups, begin, rows = [], 0, 0
    limit = max(int(sizes.sum()) // 16, 2048)
    for end, size in enumerate(sizes.tolist(), start=1):
        rows += size
        if rows >= limit or end - begin == _GROUP or end == len(sizes):
            groups.append(slice(begin, end))
            begin, rows = end, 0
    return groups


def _equal_groups(begin: int, end: int) -> list[slice]:
    """Divide devices begin, ..., end - 1 into runs of as equal a length as can be."""
    count = end - begin
    groups = max(min(_SAMPLE_GROUPS, count), -(-count // _GROUP))
    bounds = [begin + count * group // groups for group in range(groups + 1)] if groups else []
    return [slice(*pair) for pair in itertools.pairwise(bounds)]
