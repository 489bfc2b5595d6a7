"""What must hold beyond the config for the stated epsilon to be true."""

from __future__ import annotations

from fedprox.config import PrivacyConfig
from fedprox.core.errors import ConfigError
from fedprox.methods import Method
from fedprox.methods.mu import MuController, learns
from fedprox.privacy.accountant import load_dp_accounting

__all__ = ["check_private"]


def check_private(config: PrivacyConfig, method: Method, mu: MuController, devices: int) -> None:
    """Refuse objects and numbers of devices for which clipping and noise do not cover all that leaves a device."""
    if config.clip > 0 and not method.sends_model_only:
        raise ConfigError(
            "`method` must declare `sends_model_only` with `privacy.clip`, since only the model that a device sends is "
            f"clipped; got {method.name!r}"
        )
    if config.noise_multiplier == 0:
        return
    if learns(mu):
        raise ConfigError(
            "`mu_controller` must be constant with `privacy.noise_multiplier`, since it uses losses without "
            f"noise; got {type(mu).__name__}"
        )
    if config.delta * devices >= 1:
        raise ConfigError(
            f"`privacy.delta` must be below 1 / {devices}, one over the number of devices, or giving away a device "
            f"at random would pass for private; got {config.delta!r}"
        )
    load_dp_accounting()  # if it is missing, fail before the run writes anything
