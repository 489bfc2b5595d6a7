"""Which devices attack: floor(share N + 1/2) of the N devices, for a seed."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.randomness import Purpose, generator
from fedprox.methods.merging import MergeRule

__all__ = ["choose_attackers", "warn_of_bounds"]


def choose_attackers(config: Config, devices: int) -> NDArray[np.bool_]:
    """Return which of the devices attack.

    >>> choose_attackers(Config.of({"attack": {"share": 0.25}}), devices=10).sum()
    np.int64(3)
    """
    chosen = np.zeros(devices, bool)
    count = math.floor(config.attack.share * devices + 0.5)
    if count:
        chosen[generator(config.seed, Purpose.ATTACKERS).choice(devices, count, replace=False)] = True
    return chosen


def warn_of_bounds(config: Config, rule: MergeRule) -> None:
    """Warn if a round can be expected to have more attackers than the merge rule withstands."""
    listed = config.devices.per_round
    expected, bound = math.floor(config.attack.share * listed + 0.5), rule.survives(listed)
    if bound is not None and expected > bound:
        warnings.warn(
            f"`attack.share` = {config.attack.share:g} gives about {expected} attackers among {listed} devices of a "
            f"round; merge.rule = {rule.name!r} withstands at most {bound}",
            stacklevel=2,
        )
