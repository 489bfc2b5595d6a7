"""Profiles: classes of devices, and how the devices of a class differ.

A device's properties depend on (seed, device) alone: its class, drawn with the classes' shares, and with standard
normal u, v, v_2

    samples per second = samples_per_second * speed * exp(spread * u)
    bytes per second   = the class's          * exp(network_spread * v), for the upload times exp(upload_spread * v_2)

so that `speed` is the median of the class. In each round its speed is multiplied by exp(round_spread * u'), drawn for
(seed, round, device), and its network by exp(network_round_spread * v'). Every day a device is available for `hours`
from `from_hour` on, by its own clock, which is up to `zones` hours ahead of the server's, or by the habits of
`[availability]`; simulated time begins at the server's midnight.

Nothing is drawn for devices that are not asked, so a million devices cost nothing.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from fedprox.config.fields import NotNegative, Positive, Section, Text, broken_rule
from fedprox.config.toml import dump_toml, read_toml
from fedprox.core.errors import ConfigError, nearest, short
from fedprox.core.randomness import Purpose, generator_stream
from fedprox.participation.clock.habits import HabitDraws, Habits, seconds_there
from fedprox.participation.clock.timing import Devices

__all__ = ["DeviceClass", "Profile", "ProfileDevices", "profile_names", "read_profile", "write_profile"]

_HOUR = 3600.0
_MOST_KEPT = 2**16  # drawn devices, so that the server can try the same candidates again
Hour = Annotated[float, Field(ge=0, lt=24, allow_inf_nan=False, description="a number in [0, 24)")]
Hours = Annotated[float, Field(gt=0, le=24, allow_inf_nan=False, description="a number in (0, 24]")]
Zones = Annotated[float, Field(ge=0, le=24, allow_inf_nan=False, description="a number in [0, 24]")]


class DeviceClass(Section):
    """`[[classes]]`: a class of devices."""

    name: Text
    share: Positive
    speed: Positive
    spread: NotNegative = 0.0
    round_spread: NotNegative = 0.0
    download_bytes_per_second: Positive
    upload_bytes_per_second: Positive
    network_spread: NotNegative = 0.0
    upload_spread: NotNegative = 0.0
    network_round_spread: NotNegative = 0.0
    latency_seconds: NotNegative = 0.0
    from_hour: Hour = 0.0
    hours: Hours = 24.0
    zones: Zones = 0.0


class Profile(Section):
    """A profile: how much a device of speed 1 trains per second, and the classes; their shares sum to 1.

    `availability` gives when devices are available, in place of the classes' own hours; `origin` and `licence` say
    where the numbers come from.
    """

    origin: Text = ""
    licence: Text = ""
    samples_per_second: Positive
    availability: Annotated[Habits | None, Field(description="a table of settings")] = None
    classes: Annotated[
        tuple[DeviceClass, ...], Field(strict=False, min_length=1, description="one or more [[classes]]")
    ]


class ProfileDevices:
    """The devices of a profile, for one seed; each is drawn when it is first needed, and kept for a while.

    Args:
      rarity: how far a device's level is below that of others with the same draws, as a multiple of `level_spread`; for
        profiles with `[availability]`.
    """

    def __init__(self, profile: Profile, seed: int, rarity: Callable[[int], float] | None = None) -> None:
        self.profile = profile
        self._seed = seed
        self._rarity = rarity
        self._bounds = np.cumsum([kind.share for kind in profile.classes]).tolist()
        self._drawn = lru_cache(maxsize=_MOST_KEPT)(self._draw)

    def at(self, devices: NDArray[np.int64], round: int) -> Devices:
        """Return what the clock needs to know about devices in a round."""
        numbers = devices.tolist()
        drawn = [self._drawn(device) for device in numbers]
        kinds = [one.kind for one in drawn]
        pace, network_pace = self._paces(numbers, kinds, round)
        network = np.array([one.network for one in drawn]) * network_pace
        return Devices(
            kind=tuple(kind.name for kind in kinds),
            samples_per_second=np.array([one.samples_per_second for one in drawn]) * pace,
            download=np.array([kind.download_bytes_per_second for kind in kinds]) * network,
            upload=np.array([one.kind.upload_bytes_per_second * one.upload for one in drawn]) * network,
            latency=np.array([kind.latency_seconds for kind in kinds]),
        )

    def seconds_left(self, devices: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Return how long each device stays available: 0 if it is not, infinity if it always is."""
        drawn, habits = [self._drawn(device) for device in devices.tolist()], self.profile.availability
        if habits is None:
            return np.array([_left(one, now) for one in drawn])
        level, peak, begins = np.array([(one.level, one.peak_hour, one.begins) for one in drawn]).reshape(-1, 3).T
        return seconds_there(habits, HabitDraws(level, peak, begins), devices, now, self._seed)

    def stays(self, device: int, now: float) -> float:
        """Return for how long one device stays available."""
        if self.profile.availability is None:
            return _left(self._drawn(device), now)
        return float(self.seconds_left(np.array([device]), now)[0])

    def _draw(self, device: int) -> _Drawn:
        with generator_stream(self._seed, Purpose.CLOCK_DEVICE, device=device) as random:
            return self._drawn_from(random, device)

    def _drawn_from(self, random: np.random.Generator, device: int) -> _Drawn:
        which, zone = random.random(2)
        speed, network = random.standard_normal(2)
        place = bisect.bisect_right(self._bounds, which * self._bounds[-1])
        kind = self.profile.classes[min(place, len(self._bounds) - 1)]
        rate = self.profile.samples_per_second * kind.speed * np.exp(kind.spread * speed)
        drawn = _Drawn(kind, float(rate), float(np.exp(kind.network_spread * network)), zone * kind.zones)
        if kind.upload_spread:
            drawn = replace(drawn, upload=float(np.exp(kind.upload_spread * random.standard_normal())))
        habits = self.profile.availability
        if habits is None:
            return drawn
        level, peak = random.standard_normal(2)
        rarity = self._rarity(device) if self._rarity is not None else 0.0
        return replace(
            drawn,
            level=habits.level + habits.level_spread * (level - rarity),
            peak_hour=habits.peak_hour + habits.peak_spread_hours * peak - drawn.hours_ahead,
            begins=random.random() * habits.slot_seconds,
        )

    def _paces(self, devices: list[int], kinds: list[DeviceClass], round: int) -> NDArray[np.float64]:
        """Return the factors of the devices' speeds and networks in a round, in two rows."""
        exponents = [self._exponents(device, kind, round) for device, kind in zip(devices, kinds, strict=True)]
        return np.exp(np.array(exponents).reshape(-1, 2).T)

    def _exponents(self, device: int, kind: DeviceClass, round: int) -> tuple[float, float]:
        if kind.round_spread == 0 and kind.network_round_spread == 0:
            return 0.0, 0.0
        with generator_stream(self._seed, Purpose.CLOCK_ROUND, round, device) as random:
            speed, network = random.standard_normal(2).tolist()
        return kind.round_spread * speed, kind.network_round_spread * network


@dataclass(frozen=True)
class _Drawn:
    kind: DeviceClass
    samples_per_second: float
    network: float
    hours_ahead: float
    upload: float = 1.0
    level: float = 0.0
    peak_hour: float = 0.0
    begins: float = 0.0


def profile_names() -> list[str]:
    """Return the names of the built-in profiles.

    >>> profile_names()
    ['equal', 'phones', 'phones-2020']
    """
    return sorted(
        Path(item.name).stem for item in files("fedprox.participation.clock").iterdir() if item.name.endswith(".toml")
    )


def read_profile(name: str) -> Profile:
    """Read a built-in profile, or a file (a name that ends in .toml or holds a slash).

    >>> [kind.name for kind in read_profile("phones").classes]
    ['fast phone', 'middling phone', 'slow phone']
    """
    if name.endswith(".toml") or "/" in name:
        path = Path(name)
        if not os.path.exists(path):
            raise ConfigError(f"`systems.profile` must be a file that exists or one of {_known()}; got {name!r}")
    elif name in profile_names():
        path = Path(str(files("fedprox.participation.clock").joinpath(f"{name}.toml")))
    else:
        raise ConfigError(
            f"`systems.profile` must be a .toml or .jsonl file or one of {_known()}; got {name!r}"
            + nearest(name, profile_names())
        )
    try:
        profile = Profile.model_validate(read_toml(path))
    except ValidationError as error:
        raise ConfigError(f"profile {name}: {_sentence(error)}") from None
    total = sum(kind.share for kind in profile.classes)
    if abs(total - 1) > 1e-6:
        raise ConfigError(f"profile {name}: the `share` of all classes must sum to 1; got {total:g}")
    if profile.availability is not None:
        for kind in profile.classes:
            if kind.hours != 24 or kind.from_hour:
                raise ConfigError(
                    f"profile {name}: `hours` and `from_hour` of {kind.name!r} must be left out with [availability], "
                    f"which sets when devices are available; got {kind.hours:g} and {kind.from_hour:g}"
                )
    return profile


def write_profile(profile: Profile, comment: str = "") -> str:
    """Return a profile as TOML text, with a comment at the top."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    stated = {key: value for key in ("origin", "licence") if (value := getattr(profile, key))}
    lines.append(dump_toml({**stated, "samples_per_second": profile.samples_per_second}).rstrip())
    if profile.availability is not None:
        lines += ["", "[availability]", dump_toml(profile.availability.model_dump()).rstrip()]
    for kind in profile.classes:
        lines += ["", "[[classes]]", dump_toml(kind.model_dump()).rstrip()]
    return "\n".join(lines) + "\n"


def _left(device: _Drawn, now: float) -> float:
    kind = device.kind
    if kind.hours == 24:
        return float("inf")
    into = (now / _HOUR + device.hours_ahead - kind.from_hour) % 24
    return max(kind.hours - into, 0.0) * _HOUR


def _known() -> str:
    return ", ".join(profile_names())


def _sentence(error: ValidationError) -> str:
    """Turn pydantic's first error into: `field` must be rule; got value."""
    first = error.errors()[0]
    place = ""
    owner: Any = Profile
    rule = "valid"
    for part in first["loc"]:
        if isinstance(part, int):
            place += f"[{part + 1}]"
            owner, rule = DeviceClass, "a table of settings"
            continue
        place += f".{part}" if place else part
        fields = owner.model_fields
        if part not in fields:
            return f"unknown key `{place}`" + nearest(part, fields)
        rule = fields[part].description or rule
        owner = Habits if part == "availability" else owner
    if first["type"] == "missing":
        return f"`{place}` must be given: {rule}"
    return f"`{place}` must be {broken_rule(first, rule)}; got {short(first['input'])}"
