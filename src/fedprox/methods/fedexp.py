"""FedExP (Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", 2023).

FedAvg with a server step that adapts to how much the updates D_k = w_k - w^t agree, with the round's weights:

    step = max(1, sum_k weight_k ||D_k||^2 / (2 (||sum_k weight_k D_k||^2 + epsilon)))
    w^{t+1} = w^t + step * sum_k weight_k D_k

The factor 2 is for local steps that only approximate a projection. A number for `extrapolation` fixes the step; 1 is
FedAvg. As in FedAvg, stragglers are dropped. Devices and server remember nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.config.fields import NotNegative
from fedprox.methods.extrapolation import Extrapolated

__all__ = ["FedExP"]


@dataclass(frozen=True)
class FedExP(Extrapolated):
    """FedExP: FedAvg with an extrapolated server step; stragglers are dropped.

    >>> FedExP(epsilon=0.0).step(1.0, 6.0)  # the mean moved by 1, devices by sqrt(6)
    3.0
    """

    name: str = field(default="fedexp", init=False)
    keeps_partial_work: bool = field(default=False, init=False)
    sends_numbers: bool = field(default=True, init=False)
    epsilon: NotNegative = 1e-3

    def step(self, moved2: float, norm2: float) -> float:
        """Return the step, depending on how far the updates agree."""
        return norm2 / (2 * (moved2 + self.epsilon))
