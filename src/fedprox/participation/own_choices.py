"""A sampler and a systems model that were given as objects from Python, in place of what the config names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedprox.config import Config
from fedprox.config.parts import find_part
from fedprox.config.selection import is_plain
from fedprox.participation.sampling import SamplingView
from fedprox.participation.stragglers import WorkView

__all__ = ["OwnChoices", "Sampler", "SystemsModel"]

Sampler = Callable[[SamplingView], Any]
"""Returns the devices of a round: numbers from 0 to N - 1."""
SystemsModel = Callable[[WorkView], Any]
"""Returns the budget of each listed device, in mini-batch steps."""


@dataclass(frozen=True)
class OwnChoices:
    """Objects that decide which devices take part, and with how much work; None where the config decides."""

    sampler: Sampler | None = None
    systems: SystemsModel | None = None

    def has_own_sampler(self, config: Config) -> bool:
        """Return whether the sampler is not one of the paper's, so that it receives what is known about devices."""
        return self.sampler is not None or not is_plain(config.devices.sampling)

    def weighs_draws(self, config: Config) -> bool:
        """Return whether replies are averaged by the number of draws, and not by n_k."""
        named = self.sampler or find_part("samplers", config.devices.sampling, "devices.sampling")
        return bool(getattr(named, "weighs_draws", False))
