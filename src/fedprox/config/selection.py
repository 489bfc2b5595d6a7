"""What the selection of devices needs, and what it cannot be combined with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedprox.config.parts import find_part, is_builtin
from fedprox.core.errors import ConfigError

if TYPE_CHECKING:
    from fedprox.config.config import Config

__all__ = ["check_selection", "is_plain"]

_PLAIN = ("uniform", "proportional", "available")
_MEAN = ("fedavg", "fedprox")  # whose next model is the mean of the replies


def is_plain(sampling: str) -> bool:
    """Return whether a scheme draws devices without regard to what is known of them.

    >>> is_plain("uniform"), is_plain("oort")
    (True, False)
    """
    return sampling in _PLAIN


def check_selection(config: Config) -> None:
    """Refuse a selection rule whose requirements are not met."""
    name = config.devices.sampling
    if is_plain(name) or not is_builtin("samplers", name):
        return
    rule = find_part("samplers", name, "devices.sampling")
    if getattr(rule, "needs_clock", False) and config.systems.model != "clock":
        raise ConfigError(
            f"`systems.model` must be 'clock' with devices.sampling = {name!r}, which needs the devices' speeds; "
            f"got {config.systems.model!r}"
        )
    candidates = config.devices.given().get("candidates", 0)
    if candidates and candidates < config.devices.per_round:
        raise ConfigError(
            f"`devices.candidates` must be at least `devices.per_round`, {config.devices.per_round}, or 0 for twice "
            f"that; got {candidates}"
        )
    if getattr(rule, "unbiased", False):
        _check_unbiased(config)


def _check_unbiased(config: Config) -> None:
    name = config.devices.sampling
    if config.method.name not in _MEAN:
        raise ConfigError(
            f"`method.name` must be one of {', '.join(_MEAN)} with devices.sampling = {name!r}, whose weights sum to 1 "
            f"only on average; got {config.method.name!r}"
        )
    if config.merge.rule != "mean":
        raise ConfigError(
            f"`merge.rule` must be 'mean' with devices.sampling = {name!r}, whose weights other rules do not keep; got "
            f"{config.merge.rule!r}"
        )
    if config.attack.share:
        raise ConfigError(
            f"`attack.share` must be 0 with devices.sampling = {name!r}, whose replies are merged as one sum; got "
            f"{config.attack.share:g}"
        )
