"""Draws that selection rules share: devices that are available, uniformly or by size, and a weighted choice of some.

On a simulated clock only available devices are drawn. At most `most_candidates` devices are tried, so that the cost of
a round does not grow with N; if that is not enough, fewer devices are returned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedprox.participation.clock.availability import most_candidates, others
from fedprox.participation.sampling import Cohort, SamplingView, owners

__all__ = ["choose_weighted", "cohort_of", "draw_by_size", "draw_uniform", "known_here", "present"]

Indices = NDArray[np.int64]

_BLOCK = 64


def draw_uniform(view: SamplingView, count: int, random: np.random.Generator, taken: Collection[int] = ()) -> list[int]:
    """Return `count` devices that are available and not taken, uniformly without replacement."""
    found: list[int] = []
    for block in uniform_blocks(view, random, taken):
        found += block.tolist()
        if len(found) >= count:
            break
    return found[:count]


def uniform_blocks(view: SamplingView, random: np.random.Generator, taken: Collection[int] = ()) -> Iterator[Indices]:
    """Yield blocks of available devices, in random order."""
    bits = random.bit_generator
    candidates = islice(others(len(view.offsets) - 1, set(taken), bits), most_candidates(view.per_round))
    while block := list(islice(candidates, _BLOCK)):
        yield present(view, np.array(block, np.int64))


def draw_by_size(view: SamplingView, count: int, random: np.random.Generator) -> Indices:
    """Return `count` different available devices, each drawn with probability p_k over the remaining ones."""
    found: dict[int, None] = {}
    looked = 0
    while len(found) < count and looked < most_candidates(count):
        words: NDArray[np.uint64] = random.bit_generator.random_raw(_BLOCK)
        found |= dict.fromkeys(present(view, owners(words, view.offsets)).tolist())
        looked += _BLOCK
    missing = count - len(found)
    more = draw_uniform(view, missing, random, found) if missing > 0 else []
    return np.array([*found, *more][:count], np.int64)


def choose_weighted(
    devices: Indices, weight: NDArray[np.float64], count: int, random: np.random.Generator
) -> list[int]:
    """Return `count` devices without replacement, each drawn in proportion to its weight among the remaining ones.

    The largest of log(u_k) / weight_k win, with u_k uniform (Efraimidis and Spirakis, 2006).
    """
    uniform = random.random(len(devices))
    with np.errstate(divide="ignore"):
        keys = np.where(weight > 0, np.log(uniform) / np.maximum(weight, 1e-300), -np.inf)
    return [int(device) for device in devices[np.argsort(-keys, kind="stable")[:count]]]


def known_here(view: SamplingView) -> Indices:
    """Return the devices that were chosen before, whose loss is known, and that are available; in increasing order."""
    known = sorted(device for device, each in view.known.items() if each.loss is not None)
    return present(view, np.array(known, np.int64))


def present(view: SamplingView, devices: Indices) -> Indices:
    """Return those of the devices that are available."""
    return devices if view.here is None or not len(devices) else devices[view.here(devices)]


def cohort_of(view: SamplingView, devices: Collection[int]) -> Cohort:
    """Return a cohort of different devices; an empty one if none is available, so that the server waits."""
    numbers = np.fromiter(devices, np.int64, len(devices))
    return Cohort(numbers, view.offsets[numbers + 1] - view.offsets[numbers], np.ones_like(numbers))
