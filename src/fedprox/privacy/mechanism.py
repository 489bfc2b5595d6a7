"""One private round: DP-FedAvg with rounds of a fixed size (McMahan et al., 2018).

    w^{t+1} = w^t + (1/K) ( sum over S_t of clip(w_k - w^t) + noise ),        noise ~ N(0, (z S)^2 I)

Every device chosen has the weight 1/K. A device that is dropped, fails or answers too late adds nothing, and K stays:
if the divisor or the noise depended on the number of replies, it would reveal whether a device replies. So even a round
without any reply adds its noise.

With the noise on the clients each device adds N(0, (z S)^2 / K) to its own update; K such shares have the variance of
the server's noise. The server adds the shares of devices that did not reply.

The two functions are pure: the source of the noise is an argument (`seeded_normals` for a simulation,
`system_normals` where real devices take part).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.trees import Tree, difference
from fedprox.privacy.clipping import clip
from fedprox.privacy.noise import Normals, with_noise

__all__ = ["Mechanism", "build_mechanism", "equal_weights"]


@dataclass(frozen=True)
class Mechanism:
    """What devices and server do to keep a round private.

    Attributes:
      clip: S.
      noise_multiplier: z; 0: clipping alone, which guarantees nothing.
      on_devices: whether each device adds its share of the noise, or the server all of it.
      per_round: K, the number of devices asked in every round.
    """

    clip: float
    noise_multiplier: float
    on_devices: bool
    per_round: int

    @property
    def share(self) -> float:
        """The standard deviation of one device's share of the noise, z S / sqrt(K)."""
        return self.noise_multiplier * self.clip / math.sqrt(self.per_round)

    def longest_update(self, anchor: Tree) -> float:
        """Return the largest norm that an update with a device's noise has, but for a chance of 1e-8.

        It is S plus the norm of the noise, which for d entries is below share (sqrt(d) + 6) with a probability of
        1 - exp(-18) (Laurent and Massart, 2000, in the form P(||z|| > sqrt(d) + t) <= exp(-t^2 / 2)); and the rounding
        of w^t + update.

        >>> mechanism = Mechanism(clip=1.0, noise_multiplier=2.0, on_devices=True, per_round=4)
        >>> round(mechanism.longest_update(np.zeros(100)), 3)  # 1 + 1 * (10 + 6), and a thousandth
        17.017
        """
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(anchor)]
        entries = sum(leaf.size for leaf in leaves)
        noise = self.share * (math.sqrt(entries) + 6) if self.on_devices and self.share > 0 else 0.0
        rounding = sum(float(np.finfo(leaf.dtype).eps) * float(np.linalg.norm(leaf)) for leaf in leaves)
        return 1.001 * (self.clip + noise) + rounding

    def update(self, anchor: Tree, params: Tree, normals: Normals) -> Tree:
        """Return what a device sends: its clipped update w_k - w^t, with its share of the noise if devices add it.

        >>> mechanism = Mechanism(clip=1.0, noise_multiplier=0.0, on_devices=True, per_round=4)
        >>> mechanism.update(np.zeros(2), np.array([0.3, 0.4]), lambda n: np.ones(n))
        array([0.3, 0.4])
        >>> mechanism = Mechanism(clip=1.0, noise_multiplier=2.0, on_devices=True, per_round=4)
        >>> mechanism.update(np.zeros(2), np.array([0.3, 0.4]), lambda n: np.ones(n))
        array([1.3, 1.4])
        """
        clipped = clip(difference(params, anchor), self.clip)
        return with_noise(clipped, self.share, normals) if self.on_devices and self.share > 0 else clipped

    def model(self, anchor: Tree, mean_update: Tree, replies: int, normals: Normals) -> Tree:
        """Return w^t plus the private mean of the updates, to which the server adds the missing noise.

        Args:
          anchor: w^t.
          mean_update: the sum of the updates received, divided by K; None where none was received.
          replies: how many were received.
          normals: the source of the noise.

        >>> mechanism = Mechanism(clip=1.0, noise_multiplier=2.0, on_devices=False, per_round=4)
        >>> mechanism.model(np.ones(2), np.array([0.5, 0.0]), 3, lambda n: np.ones(n))
        array([2. , 1.5])
        """
        shares = self.per_round - replies if self.on_devices else self.per_round
        deviation = self.share * math.sqrt(max(shares, 0)) / self.per_round

        def moved(start: Any, move: Any) -> Any:
            noise = deviation * normals(np.size(start)).reshape(np.shape(start)) if deviation > 0 else 0.0
            return (np.asarray(start, np.float64) + move + noise).astype(start.dtype)

        return jax.tree.map(moved, anchor, mean_update if replies else jax.tree.map(np.zeros_like, anchor))


def build_mechanism(config: Config) -> Mechanism | None:
    """Return the mechanism of the config, or None.

    >>> build_mechanism(Config.from_dict({})) is None
    True
    """
    chosen = config.privacy
    if chosen.clip == 0:
        return None
    return Mechanism(chosen.clip, chosen.noise_multiplier, chosen.where == "client", config.devices.per_round)


def equal_weights(per_round: int, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return 1/K for each device kept, and 0 for the others; the remaining weight stays with w^t.

    >>> equal_weights(4, np.array([True, True, False, True]))
    array([0.25, 0.25, 0.  , 0.25])
    """
    return np.where(kept, 1 / per_round, 0.0)
