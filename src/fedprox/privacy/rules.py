"""What must hold beyond the config for the stated epsilon to be true."""

from __future__ import annotations

from fedprox.config import PrivacyConfig
from fedprox.core.errors import ConfigError
from fedprox.methods import Method
from fedprox.methods.mu import ConstantMu, MuController
from fedprox.privacy.accountant import load_dp_accounting

__all__ = ["check_private"]


def check_private(config: PrivacyConfig, method: Method, mu: MuController, devices: int) -> None:
    """Refuse objects and numbers of devices for which clipping and noise do not cover all that leaves a device."""
    if config.clip > 0 and (type(method).reply is not Method.reply or method.needs_gradients):
        raise ConfigError(
            f"`method` must send nothing but its model with `privacy.clip`; got {method.name!r}, which sends more"
        )
    if config.noise_multiplier == 0:
        return
    if not isinstance(mu, ConstantMu):
        raise ConfigError(
            "`mu_controller` must be constant with `privacy.noise_multiplier`, since it follows losses that no noise "
            f"covers; got {type(mu).__name__}"
        )
    if config.delta * devices >= 1:
        raise ConfigError(
            f"`privacy.delta` must be below 1 / {devices}, one over the number of devices, or giving away a device "
            f"at random would pass for private; got {config.delta!r}"
        )
    load_dp_accounting()  # where it is missing, before the run leaves anything behind
