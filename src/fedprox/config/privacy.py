"""`[privacy]`: clipping, noise, and what they cannot be combined with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedprox.config.fields import NotNegative, Section
from fedprox.config.parts import builtin_names, capability, find_part
from fedprox.core.errors import ConfigError

if TYPE_CHECKING:
    from fedprox.config.config import Config

__all__ = ["PrivacyConfig", "check_privacy"]


class PrivacyConfig(Section):
    """`[privacy]`: differential privacy of the devices.

    Attributes:
      clip: S, the largest L2 norm of a device's update; 0: no clipping.
      noise_multiplier: z, the noise on the sum of the updates as a multiple of S.
      where: who adds the noise: the server to the sum, or each device its share of it.
      delta: at which epsilon is stated.
    """

    clip: NotNegative = 0.0
    noise_multiplier: NotNegative = 0.0
    where: Annotated[Literal["server", "client"], Field(description="one of server, client")] = "server"
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False, description="a number in (0, 1)")] = 1e-5


def check_privacy(config: Config) -> None:
    """Refuse settings under which the stated epsilon would not be true."""
    if config.privacy.noise_multiplier > 0 and config.privacy.clip == 0:
        raise ConfigError(
            "`privacy.clip` must be a number > 0 with `privacy.noise_multiplier`, since noise protects only updates "
            "of bounded norm; got 0.0"
        )
    if config.privacy.clip > 0:
        _check_clipped(config)
    if config.privacy.noise_multiplier > 0:
        _check_noised(config)


def _check_clipped(config: Config) -> None:
    if not _sends_model_only(config.method.name, unknown=True):
        private = [name for name in builtin_names("methods") if _sends_model_only(name, unknown=False)]
        raise ConfigError(
            f"`method.name` must be one of {', '.join(private)} with `privacy.clip`, since only the model that "
            f"a device sends is clipped; got {config.method.name!r}, which sends more"
        )
    if config.devices.sampling != "uniform":
        raise ConfigError(
            "`devices.sampling` must be 'uniform' with `privacy.clip`, since otherwise a device's weight in a round "
            f"is bounded only by its number of draws; got {config.devices.sampling!r}"
        )


def _sends_model_only(method: str, unknown: bool) -> bool:
    """Return whether a method declares that devices send their model and nothing else.

    `unknown` is the answer where a function hides it. What the server does with the average costs no privacy.
    """
    return bool(capability(find_part("methods", method, "method.name"), "sends_model_only", unknown))


def _check_noised(config: Config) -> None:
    if config.systems.model != "stragglers":
        raise ConfigError(
            "`systems.model` must be 'stragglers' with `privacy.noise_multiplier`, since devices that come and go are "
            f"not drawn uniformly; got {config.systems.model!r}"
        )
    if isinstance(config.method.mu, str):
        raise ConfigError(
            "`method.mu` must be a number with `privacy.noise_multiplier`, since rules for mu use losses without "
            f"noise; got {config.method.mu!r}"
        )
    for name in ("converged", "diverged"):
        if getattr(config.stop, name):
            raise ConfigError(
                f"`stop.{name}` must be false with `privacy.noise_multiplier`, since it uses losses without "
                "noise; got True"
            )
