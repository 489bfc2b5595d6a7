"""One pass over the samples of many devices: losses, hits and gradients come out of it together.

A compiled loop walks the devices of a group and, within a device, its rows block by block. How devices are grouped
depends on the data alone, never on the number of workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from fedprox.measured_sample import MeasuredSample
from fedprox.models import Model, mean_gradient
from fedprox.population import Samples
from fedprox.resident import Resident, resident
from fedprox.runtime import Workers, compiled
from fedprox.sample_error import Totals
from fedprox.subproblem import rows_in_block
from fedprox.trees import Tree, TreeSum, to_numpy

__all__ = ["DataPass", "PerDevice"]

_GROUP = 256  # most devices in one call of the compiled loop
_SAMPLE_GROUPS = 20  # of the devices of a sample, for its intervals


@dataclass(frozen=True)
class PerDevice:
    """Sums over the samples of each measured device."""

    weight: NDArray[np.float64]  # how many devices each one stands for
    samples: NDArray[np.int64]
    loss: NDArray[np.float64]
    correct: NDArray[np.int64]
    gradient_norm2: NDArray[np.float64]  # ||grad F_k||^2; zeros where gradients were not asked for
    gradient: Tree = None  # sum_k weight_k n_k grad F_k, where asked for
    plain_gradient: Tree = None  # sum_k weight_k grad F_k, where asked for
    of_groups: Totals | None = None  # the sums over each group of a sample


class DataPass:
    """A pass over the samples of some devices; `plain` asks for the sum of grad F_k without masses too."""

    def __init__(
        self,
        samples: Samples,
        resident: Resident,
        measured: MeasuredSample,
        model: Model,
        workers: Workers,
        *,
        plain: bool = False,
    ) -> None:
        self._resident = resident
        self._model = model
        self._workers = workers
        self._weight = measured.weight
        self._begins = samples.offsets[measured.devices]
        self._sizes = samples.offsets[measured.devices + 1] - self._begins
        self._columns = [self._weight, self._weight / self._sizes] if plain else [self._weight]
        certain = min(measured.certain, len(self._sizes))
        self._groups = _groups(self._sizes[:certain]) + _equal_groups(certain, len(self._sizes))
        self._certain = sum(group.stop <= certain for group in self._groups)
        self._is_sample = measured.unseen > 0

    def compile(self, params: Tree, gradients: bool) -> None:
        """Compile the loop by running it over no devices."""
        if len(self._sizes):
            self._run(resident(params), slice(0, 0), gradients)

    def __call__(self, params: Tree, gradients: bool) -> PerDevice:
        """Take the pass at a model."""
        loss, correct, norm2 = (np.zeros(len(self._sizes)) for _ in range(3))
        total = TreeSum(len(self._groups))
        of_groups: dict[int, Tree] = {}
        at = resident(params)
        answers = self._workers.run(
            lambda group: self._run(at, group, gradients),
            self._groups,
            [int(self._sizes[group].sum()) for group in self._groups],
        )
        for index, (losses, corrects, norms2, sums) in answers:
            group = self._groups[index]
            count = group.stop - group.start
            loss[group], correct[group], norm2[group] = losses[:count], corrects[:count], norms2[:count]
            total.add(index, jax.tree.map(lambda leaf: leaf.astype(np.float64), sums))
            if gradients and self._is_sample:
                of_groups[index] = sums[0]
        sums = total.result() if gradients and self._groups else ()
        totals = self._totals(norm2, of_groups) if of_groups else None
        gradient, plain_gradient = (*sums, None, None)[:2]
        return PerDevice(
            self._weight, self._sizes, loss, correct.astype(np.int64), norm2, gradient, plain_gradient, totals
        )

    def _totals(self, norm2: NDArray[np.float64], gradients: dict[int, Tree]) -> Totals:
        masses = self._weight * self._sizes
        return Totals(
            samples=np.array([masses[group].sum() for group in self._groups]),
            norm2=np.array([masses[group] @ norm2[group] for group in self._groups]),
            gradient=[gradients[index] for index in range(len(self._groups))],
            certain=self._certain,
        )

    def _run(self, params: Tree, group: slice, gradients: bool) -> Any:
        count = group.stop - group.start
        begins, sizes = np.zeros(_GROUP, np.int32), np.zeros(_GROUP, np.int32)
        begins[:count], sizes[:count] = self._begins[group], self._sizes[group]
        weights = tuple(np.zeros(_GROUP, np.float32) for _ in self._columns)
        for weight, column in zip(weights, self._columns, strict=True):
            weight[:count] = column[group]
        program = _program(self._model, self._resident.block, gradients)
        return to_numpy(program(params, self._resident.x, self._resident.y, begins, sizes, weights, np.int32(count)))


@lru_cache(maxsize=32)
def _program(model: Model, block: int, gradients: bool) -> Callable[..., Any]:
    """Return the compiled pass over a group of devices.

    `program(params, x, y, begins, sizes, weights, count) -> (losses, correct, norms2, sums)` with one entry per device
    in the first three, and for each of `weights` the sum of weight * n_k grad F_k.
    """

    def program(
        params: Tree,
        x: jax.Array,
        y: jax.Array,
        begins: jax.Array,
        sizes: jax.Array,
        weights: tuple[jax.Array, ...],
        count: jax.Array,
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

        def add_device(k: jax.Array, sums: tuple[Any, ...]) -> tuple[Any, ...]:
            losses, corrects, norms2, totals = sums
            loss, correct, gradient = over_blocks(begins[k], sizes[k])
            norm2 = sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)), start=jnp.float32(0))
            size = sizes[k].astype(jnp.float32)
            return (
                lax.dynamic_update_index_in_dim(losses, loss, k, 0),
                lax.dynamic_update_index_in_dim(corrects, correct, k, 0),
                lax.dynamic_update_index_in_dim(norms2, norm2 / (size * size), k, 0),
                tuple(  # a weight is read only where there is a gradient: XLA cannot compile one that is read in vain
                    jax.tree.map(lambda so_far, leaf, weight=weight: so_far + weight[k] * leaf, total, gradient)
                    for weight, total in zip(weights, totals, strict=True)
                ),
            )

        nothing = (jnp.zeros(_GROUP), jnp.zeros(_GROUP, jnp.int32), jnp.zeros(_GROUP), (zero,) * len(weights))
        return lax.fori_loop(0, count, add_device, nothing)

    return compiled(program, small=model.small)


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
