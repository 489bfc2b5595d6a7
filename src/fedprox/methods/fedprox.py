"""FedProx (Algorithm 2).

Each chosen device minimises h_k(w; w^t) = F_k(w) + (mu / 2) ||w - w^t||^2 as far as its budget allows, and the server
averages all results, including partial ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.methods.method import Method

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(Method):
    """FedProx: a proximal term, partial work is kept."""

    name: str = field(default="fedprox", init=False)
    proximal: bool = field(default=True, init=False)
    sends_model_only: bool = field(default=True, init=False)
