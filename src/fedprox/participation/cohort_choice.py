"""The devices of a round, chosen by the sampler that the config names.

A sampler is a function of a `SamplingView` that returns devices: numbers from 0 to N - 1, with a device that is to
count twice listed twice. Results are averaged with weights n_k, or, where the sampler has `weighs_draws = True`, with
the number of draws. It is built again for every round and receives all that it needs, so that a resumed run equals an
uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedprox.config import DevicesConfig
from fedprox.config.parts import build_part
from fedprox.core.errors import RunError, short
from fedprox.core.own_code import own_code
from fedprox.core.randomness import Purpose
from fedprox.participation.clock.availability import Here
from fedprox.participation.known_devices import KnownDevice
from fedprox.participation.own_choices import Sampler
from fedprox.participation.sampling import Cohort, Losses, SamplingView, listed

__all__ = ["choose_cohort"]


def choose_cohort(
    config: DevicesConfig,
    offsets: NDArray[np.int64],
    *,
    seed: int,
    round: int,
    known: Mapping[int, KnownDevice] | None = None,
    purpose: Purpose = Purpose.DEVICES,
    sampler: Sampler | None = None,
    here: Here | None = None,
    losses: Losses | None = None,
    seconds: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None,
) -> Cohort:
    """Return the devices of a round from a population with these offsets of its training samples.

    `sampler` takes the place of the one that the config names. With a clock, `here` gives which devices are available
    and `seconds` how long a round takes. `losses` gives devices' losses at the current model.
    """
    view = SamplingView(round, config.per_round, offsets, seed, known or {}, purpose, here, losses, seconds)
    name = config.sampling if sampler is None else getattr(sampler, "__qualname__", type(sampler).__qualname__)
    choose = sampler or build_part("samplers", "devices.sampling", config, {"seed": seed})
    with own_code(f"the sampler {name!r}"):
        chosen = choose(view)
    return chosen if isinstance(chosen, Cohort) else listed(_checked(chosen, name, view), offsets)


def _checked(chosen: object, name: str, view: SamplingView) -> NDArray[np.int64]:
    devices = np.asarray(chosen)
    count = len(view.offsets) - 1
    if devices.ndim != 1 or not len(devices) or devices.dtype.kind not in "iu":
        raise RunError(f"the sampler {name!r} must return numbers of devices, at least one; got {short(chosen)}")
    if devices.min() < 0 or devices.max() >= count:
        wrong = devices[(devices < 0) | (devices >= count)][0]
        raise RunError(f"the sampler {name!r} must return devices from 0 to {count - 1}; got {wrong}")
    return devices.astype(np.int64)
