"""Where the devices of the clock come from: a profile of classes, a fleet of measured devices, or a trace."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.participation.clock.fleet_file import FleetDevices, is_fleet_file
from fedprox.participation.clock.profiles import ProfileDevices, read_profile
from fedprox.participation.clock.rare_labels import build_rarity
from fedprox.participation.clock.timing import Devices
from fedprox.participation.clock.trace import read_trace
from fedprox.population import Population

__all__ = ["Source", "build_source"]

_USUAL = "phones"


class Source(Protocol):
    """Where the devices' speeds and availability come from."""

    def at(self, devices: NDArray[np.int64], round: int) -> Devices:
        """Return what the clock needs to know about devices in a round."""

    def seconds_left(self, devices: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Return for how long each device stays available; 0 for an unavailable one."""

    def stays(self, device: int, now: float) -> float:
        """Return for how long one device stays available."""


def build_source(config: Config, population: Population) -> Source:
    """Return the devices that the config names."""
    systems = config.systems
    name = systems.profile or _USUAL
    rarity = build_rarity(systems, population)
    if not systems.trace and not is_fleet_file(name):
        profile = read_profile(name)
        if rarity is None or profile.availability is not None:
            return ProfileDevices(profile, config.seed, rarity)
    if rarity is not None:
        raise ConfigError(
            "`systems.rare_labels` must be left out unless the profile has [availability], as phones-2020 does; got "
            f"{systems.rare_labels} with {systems.trace or name!r}"
        )
    if systems.trace:
        return read_trace(systems.trace, population.devices)
    return FleetDevices(read_trace(name, None, "systems.profile"), config.seed)
