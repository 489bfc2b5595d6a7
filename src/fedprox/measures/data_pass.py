"""One pass over the samples of many devices: losses, hits and gradients come out of it together.

The devices are divided into groups, which are walked side by side (`pass_program`). How they are divided depends on
data and model alone, never on the number of workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.threads import Workers
from fedprox.core.trees import Tree, TreeSum, quiet, to_numpy
from fedprox.measures.measured_sample import MeasuredSample
from fedprox.measures.pass_program import GROUP, Places, walk_program
from fedprox.measures.sample_error import Totals
from fedprox.models import Model
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples, pad, to_backend

__all__ = ["DataPass", "PerDevice", "take_passes"]

_SAMPLE_GROUPS = 20  # of the devices of a sample, for its intervals
_NUMBERS = 1 << 18  # that a small model processes in the time of a call
_ROWS = 64  # that take another model longer than a call


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
    """A pass over the samples of some devices; with `gradients`, also for these.

    `plain` asks for the sum of grad F_k without masses too.
    """

    def __init__(
        self,
        samples: Samples,
        data: LoadedSamples,
        measured: MeasuredSample,
        model: Model,
        *,
        gradients: bool = False,
        plain: bool = False,
    ) -> None:
        self.devices = measured.devices
        self.weight = measured.weight
        begins = samples.offsets[measured.devices]
        self.sizes = samples.offsets[measured.devices + 1] - begins
        certain = min(measured.certain, len(self.sizes))
        least = _NUMBERS // max(samples.width, 1) if model.small else _ROWS
        self.groups = _groups(self.sizes[:certain], least) + _equal_groups(certain, len(self.sizes))
        self.certain = sum(group.stop <= certain for group in self.groups)
        self.is_sample = measured.unseen > 0
        self.gradients = gradients
        columns = ([self.weight, self.weight / self.sizes] if plain else [self.weight]) if gradients else []
        places = Places(
            pad(_int32(begins)),
            pad(_int32(self.sizes)),
            tuple(pad(column.astype(np.float32)) for column in columns),
        )
        self._data = (data.x, data.y, jax.device_put(places))  # once: `to_backend` would compile a program for it
        self._program = walk_program(model, data.block)

    def compile(self, params: Tree) -> None:
        """Compile the loop by running it over no devices."""
        if self.groups:
            self.walk(to_backend(params), slice(0, 0))

    def walk(self, params: Tree, group: slice) -> Any:
        """Return losses, hits and squared gradient norms of the devices of a group, and the sums of its gradients."""
        count = group.stop - group.start
        *each, sums = to_numpy(self._program(params, *self._data, np.array([group.start, count], np.int32)))
        return *(values[:count] for values in each), sums


def take_passes(
    passes: Sequence[DataPass], params: Tree, workers: Workers, own: Mapping[int, Tree] | None = None
) -> list[PerDevice]:
    """Take some passes at a model, all their groups side by side; `own` are models of some devices in its place."""
    at, own = to_backend(params), own or {}
    found = [_Found(each, _divided(each, own) if own else each.groups) for each in passes]
    tasks = [(which, index) for which, each in enumerate(found) for index in range(len(each.groups))]
    costs = [int(each.sizes[group].sum()) for each, that in zip(passes, found, strict=True) for group in that.groups]
    adding = Lock()

    @quiet
    def walk(task: tuple[int, int]) -> None:
        which, index = task
        group = found[which].groups[index]
        first = int(passes[which].devices[group.start])
        answer = passes[which].walk(to_backend(own[first]) if first in own else at, group)
        with adding:
            found[which].put(index, *answer)

    workers.run(walk, tasks, costs)
    return [each.result() for each in found]


class _Found:
    """The results so far of the groups of a pass."""

    def __init__(self, taken: DataPass, groups: list[slice]) -> None:
        self._pass = taken
        self.groups = groups
        self._loss, self._correct, self._norm2 = (np.zeros(len(taken.sizes)) for _ in range(3))
        self._total = TreeSum(len(groups))
        self._gradients: dict[int, Tree] = {}

    def put(self, index: int, losses: Any, correct: Any, norms2: Any, sums: tuple[Tree, ...]) -> None:
        group = self.groups[index]
        self._loss[group], self._correct[group], self._norm2[group] = losses, correct, norms2
        self._total.add(index, jax.tree.map(lambda leaf: leaf.astype(np.float64), sums))
        if self._pass.gradients and self._pass.is_sample and self.groups is self._pass.groups:
            self._gradients[index] = sums[0]

    def result(self) -> PerDevice:
        sums = self._total.result() if self.groups else ()
        gradient, plain_gradient = (*sums, None, None)[:2]
        return PerDevice(
            self._pass.weight,
            self._pass.sizes,
            self._loss,
            self._correct.astype(np.int64),
            self._norm2,
            gradient,
            plain_gradient,
            self._totals() if self._gradients else None,
        )

    def _totals(self) -> Totals:
        groups, masses = self._pass.groups, self._pass.weight * self._pass.sizes
        return Totals(
            samples=np.array([masses[group].sum() for group in groups]),
            norm2=np.array([masses[group] @ self._norm2[group] for group in groups]),
            gradient=[self._gradients[index] for index in range(len(groups))],
            certain=self._pass.certain,
        )


def _divided(taken: DataPass, own: Mapping[int, Tree]) -> list[slice]:
    """Return the groups of a pass, divided so that a device with its own model forms its own group."""
    parts = []
    for group in taken.groups:
        begin = group.start
        for position in range(group.start, group.stop):
            if int(taken.devices[position]) in own:
                parts += [slice(begin, position)] if position > begin else []
                parts.append(slice(position, position + 1))
                begin = position + 1
        parts += [slice(begin, group.stop)] if group.stop > begin else []
    return parts


def _groups(sizes: NDArray[np.int64], least: int) -> list[slice]:
    """Divide devices into runs of at most GROUP devices and a sixteenth of the samples, or `least`, each."""
    groups, begin, rows = [], 0, 0
    limit = max(int(sizes.sum()) // 16, least)
    for end, size in enumerate(sizes.tolist(), start=1):
        rows += size
        if rows >= limit or end - begin == GROUP or end == len(sizes):
            groups.append(slice(begin, end))
            begin, rows = end, 0
    return groups


def _equal_groups(begin: int, end: int) -> list[slice]:
    """Divide devices begin, ..., end - 1 into runs of nearly equal length."""
    count = end - begin
    groups = max(min(_SAMPLE_GROUPS, count), -(-count // GROUP))
    bounds = [begin + count * group // groups for group in range(groups + 1)] if groups else []
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def _int32(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
    return numbers.astype(np.int32)
