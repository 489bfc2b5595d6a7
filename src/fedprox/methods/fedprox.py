"""FedProx (Algorithm 2).

Each chosen device minimises h_k(w; w^t) = F_k(w) + (mu / 2) ||w - w^t||^2 as far as its budget allows, and the server
averages all results, also the partial ones.
"""

from __future__ import annotations

from fedprox.methods.method import Method

__all__ = ["fedprox"]


def fedprox() -> Method:
    """Return FedProx: a proximal term, partial work is kept."""
    return Method("fedprox", proximal=True)
