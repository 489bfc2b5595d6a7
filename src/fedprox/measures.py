"""What is measured of a model: loss, accuracy, and how much the devices disagree.

    f(w)     = sum_k p_k F_k(w)                                             (Equation 1)
    variance = E_k ||grad F_k(w) - grad f(w)||^2 = E_k ||grad F_k(w)||^2 - ||grad f(w)||^2
    B(w)     = sqrt( E_k ||grad F_k(w)||^2 / ||grad f(w)||^2 )              (Definition 3)

with E_k over devices with masses p_k. B = 1 where E_k ||grad F_k||^2 = ||grad f||^2 (the definition's exception), and
infinite at a stationary point of f that the devices do not agree on. Accuracies are pooled over all examples.

The paper's released code takes E_k as a plain mean over devices, around the same grad f (`[compat]`). With g the plain
mean of the grad F_k the variance is then E_k ||grad F_k||^2 - 2 <g, grad f> + ||grad f||^2, and B may be below 1.

Everything comes out of one pass over the data: a compiled loop walks the devices of a group and, within a device, its
rows block by block. How devices are grouped depends on the data alone, never on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from fedprox.models import Model, mean_gradient
from fedprox.population import Population, Samples
from fedprox.randomness import Purpose, words
from fedprox.resident import Resident, resident
from fedprox.runtime import SMALL, Workers, compiled
from fedprox.sampling import draw_without_replacement
from fedprox.subproblem import rows_in_block
from fedprox.trees import Tree, TreeSum, inner_product, quiet, squared_norm, to_numpy

__all__ = ["Measurer", "Measures", "PerDevice", "dissimilarity"]

_GROUP = 256  # most devices in one call of the compiled loop


@dataclass(frozen=True)
class Measures:
    """The measures of one model over the measured devices; None where there is nothing to measure."""

    train_loss: float
    train_accuracy: float | None
    test_accuracy: float | None
    gradient_variance: float | None = None
    dissimilarity: float | None = None


@dataclass(frozen=True)
class PerDevice:
    """Sums over the samples of each measured device."""

    samples: NDArray[np.int64]
    loss: NDArray[np.float64]
    correct: NDArray[np.int64]
    gradient_norm2: NDArray[np.float64]  # ||grad F_k||^2; zeros where gradients were not asked for
    gradient: Tree  # sum_k n_k grad F_k, or None
    plain_gradient: Tree = None  # sum_k grad F_k, where asked for


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
        weighted: bool = True,
    ) -> None:
        devices = np.arange(population.devices)
        if 0 < sample < population.devices:
            devices = np.sort(draw_without_replacement(len(devices), words(sample, seed, Purpose.MEASURED_DEVICES)))
        self.devices = devices
        self._model = model
        self._gradients = gradients
        self._weighted = weighted
        self._train = _Pass(population.train, train, devices, model, workers, plain=gradients and not weighted)
        with_test = devices[np.diff(population.test.offsets)[devices] > 0]
        self._with_test = np.isin(devices, with_test)
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
        total = train.samples.sum()
        variance = b = None
        if self._gradients:
            variance, b = _weighted_spread(train) if self._weighted else _plain_spread(train)
        return Measures(
            train_loss=float(train.loss.sum() / total),
            train_accuracy=self._accuracy(train),
            test_accuracy=self._accuracy(test),
            gradient_variance=variance,
            dissimilarity=b,
        )

    def per_device(self, params: Tree) -> list[dict[str, Any]]:
        """Return one record per measured device: samples, loss and accuracy on training and test data."""
        train, tested = self._train(params, False), self._test(params, False)
        test_at = np.cumsum(self._with_test) - 1
        records = []
        for position, device in enumerate(self.devices):
            record: dict[str, Any] = {"device": int(device)}
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
        total = int(sums.samples.sum())
        return int(sums.correct.sum()) / total if total and self._model.predict is not None else None


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
    total = float(train.samples.sum())
    mean_norm2 = float(train.samples @ train.gradient_norm2) / total
    norm2_of_mean = squared_norm(train.gradient) / total**2
    return max(mean_norm2 - norm2_of_mean, 0.0), dissimilarity(mean_norm2, norm2_of_mean)


def _plain_spread(train: PerDevice) -> tuple[float, float]:
    """Return the gradient variance and B as plain means over devices."""
    total, devices = float(train.samples.sum()), len(train.samples)
    mean_norm2 = float(train.gradient_norm2.mean())
    norm2_of_mean = squared_norm(train.gradient) / total**2
    product = inner_product(train.plain_gradient, train.gradient) / (devices * total)
    variance = max(mean_norm2 - 2 * product + norm2_of_mean, 0.0)
    if mean_norm2 < norm2_of_mean:  # possible for a plain mean alone
        return variance, math.sqrt(mean_norm2 / norm2_of_mean)
    return variance, dissimilarity(mean_norm2, norm2_of_mean)


class _Pass:
    """One pass over the samples of some devices; `plain` asks for the plain sum of their gradients too."""

    def __init__(
        self,
        samples: Samples,
        resident: Resident,
        devices: NDArray[np.int64],
        model: Model,
        workers: Workers,
        *,
        plain: bool = False,
    ) -> None:
        self._resident = resident
        self._model = model
        self._workers = workers
        self._plain = plain
        self._begins = samples.offsets[devices]
        self._sizes = samples.offsets[devices + 1] - self._begins
        self._groups = _groups(self._sizes)

    def compile(self, params: Tree, gradients: bool) -> None:
        if len(self._sizes):
            self._run(resident(params), slice(0, 0), gradients)

    def __call__(self, params: Tree, gradients: bool) -> PerDevice:
        loss, correct, norm2 = (np.zeros(len(self._sizes)) for _ in range(3))
        total = TreeSum(len(self._groups))
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
        sums = total.result() if gradients and self._groups else (None,)
        return PerDevice(self._sizes, loss, correct.astype(np.int64), norm2, *sums)

    def _run(self, params: Tree, group: slice, gradients: bool) -> Any:
        begins, sizes = np.zeros(_GROUP, np.int32), np.zeros(_GROUP, np.int32)
        count = group.stop - group.start
        begins[:count], sizes[:count] = self._begins[group], self._sizes[group]
        program = _program(self._model, self._resident.block, gradients, self._plain)
        return to_numpy(program(params, self._resident.x, self._resident.y, begins, sizes, np.int32(count)))


@lru_cache(maxsize=32)
def _program(model: Model, block: int, gradients: bool, plain: bool) -> Callable[..., Any]:
    """Return the compiled pass over a group of devices.

    `program(params, x, y, begins, sizes, count) -> (losses, correct, norms2, gradients)` with one entry per device in
    the first three; `gradients` holds sum_k n_k grad F_k, and with `plain` sum_k grad F_k as well.
    """

    def program(
        params: Tree, x: jax.Array, y: jax.Array, begins: jax.Array, sizes: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, tuple[Tree, ...]]:
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
            losses, corrects, norms2, totals = sums
            loss, correct, gradient = over_blocks(begins[k], sizes[k])
            norm2 = sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)), start=jnp.float32(0))
            size = sizes[k].astype(jnp.float32)
            more = (gradient, jax.tree.map(lambda leaf: leaf / size, gradient)) if plain else (gradient,)
            return (
                lax.dynamic_update_index_in_dim(losses, loss, k, 0),
                lax.dynamic_update_index_in_dim(corrects, correct, k, 0),
                lax.dynamic_update_index_in_dim(norms2, norm2 / (size * size), k, 0),
                jax.tree.map(jnp.add, totals, more),
            )

        nothing = (
            jnp.zeros(_GROUP),
            jnp.zeros(_GROUP, jnp.int32),
            jnp.zeros(_GROUP),
            (zero, zero) if plain else (zero,),
        )
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
