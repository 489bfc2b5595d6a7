"""What the released models cost in privacy: epsilon at delta.

The guarantee: let one device's data be replaced by any other data. Then for every set A of sequences of models

    P(w^1, ..., w^T in A)  <=  e^epsilon P(w^1, ..., w^T in A with the other data) + delta

The accountant covers what a round actually does: K of N devices uniformly without replacement, each update clipped to
S, Gaussian noise z S on the sum. Replacing a device replaces one clipped update by another, which moves the sum by up
to 2 S; so relative to the sensitivity the noise is z / 2. Its Renyi divergences (Wang, Balle and Kasiviswanathan,
"Subsampled Renyi Differential Privacy and Analytical Moments Accountant", 2019) come from Google's dp-accounting; they
add up over rounds and become epsilon at the end. That a device is rarely chosen helps only against an observer who does
not know which devices were chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.extras import needs_extra

__all__ = ["Accountant", "build_accountant", "load_dp_accounting"]


@dataclass(frozen=True)
class Accountant:
    """The privacy loss of rounds with K = `per_round` of N = `devices` devices and noise z S on their sum.

    A round counts as soon as its model has been released; one that is repeated with fresh noise counts again.

    >>> spent = Accountant(devices=1000, per_round=10, noise_multiplier=2.0, delta=1e-5)
    >>> round(spent.epsilon(200), 2)
    1.75
    >>> spent.epsilon(0)
    0.0
    """

    devices: int
    per_round: int
    noise_multiplier: float
    delta: float

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after a number of rounds; infinite where there is no noise."""
        if rounds == 0:
            return 0.0
        if self.noise_multiplier == 0:
            return math.inf
        orders, divergences = self.renyi()
        epsilon, _ = load_dp_accounting().rdp.compute_epsilon(orders, rounds * divergences, self.delta)
        return float(epsilon)

    def record(self, rounds: int) -> dict[str, float | None]:
        """Return epsilon after a number of rounds as written to `metrics.jsonl`: None if it is infinite."""
        epsilon = self.epsilon(rounds)
        return {"epsilon": epsilon if math.isfinite(epsilon) else None}

    def renyi(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return orders, and one round's Renyi divergence of each order."""
        return _one_round(self.devices, self.per_round, self.noise_multiplier / 2)


def build_accountant(config: Config, devices: int) -> Accountant | None:
    """Return the accountant of a private run; None for a config without privacy.

    >>> build_accountant(Config.from_dict({}), 30) is None
    True
    """
    chosen = config.privacy
    if chosen.clip == 0:
        return None
    return Accountant(devices, config.devices.per_round, chosen.noise_multiplier, chosen.delta)


@lru_cache(maxsize=32)
def _one_round(devices: int, per_round: int, noise: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute a round's divergences, with noise as a multiple of the sensitivity; this takes about a second."""
    library = load_dp_accounting()
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    round = library.SampledWithoutReplacementDpEvent(devices, per_round, library.GaussianDpEvent(noise))
    with np.errstate(all="ignore"):  # orders that overflow give infinity, which is never the smallest
        accountant.compose(round)
    return np.asarray(accountant.orders, float), np.asarray(accountant.rdp, float)


def load_dp_accounting() -> ModuleType:
    """Import dp-accounting; if it is missing, the error says how to install it."""
    with needs_extra("privacy", "`privacy.noise_multiplier`"):
        import dp_accounting
    return dp_accounting
