"""FedExProx (Li, Acharya and Richtarik, "The Power of Extrapolation in Federated Learning", 2024).

FedProx with an extrapolated server step. Each device minimises F_k(w) + (mu / 2) ||w - w^t||^2, an approximate proximal
point w_k, and with D_k = w_k - w^t and the round's weights

    step = sum_k weight_k ||D_k||^2 / ||sum_k weight_k D_k||^2        (gradient diversity, GraDS)
    w^{t+1} = w^t + step * sum_k weight_k D_k

mu D_k is minus the gradient of F_k's Moreau envelope where the solution is exact; the ratio is at least 1 for any
weights that sum to 1. Unlike FedExP's rule there is no factor 2. A number for `extrapolation` fixes the step; 1 is
FedProx. Partial work is kept. Devices and server remember nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.methods.extrapolation import Extrapolated

__all__ = ["FedExProx"]


@dataclass(frozen=True)
class FedExProx(Extrapolated):
    """FedExProx: FedProx with an extrapolated server step; partial work is kept.

    >>> FedExProx().step(1.0, 3.0)  # the mean moved by 1, devices by sqrt(3)
    3.0
    """

    name: str = field(default="fedexprox", init=False)
    proximal: bool = field(default=True, init=False)
    sends_numbers: bool = field(default=True, init=False)

    def step(self, moved2: float, norm2: float) -> float:
        """Return the step, depending on how far the updates agree."""
        return norm2 / moved2
