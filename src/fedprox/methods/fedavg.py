"""FedAvg (Algorithm 1; McMahan et al., 2017).

Each chosen device takes E epochs of SGD on F_k from w^t, and the server averages the results. A device that cannot
finish in time is dropped. If everybody is dropped the model stays as it is.
"""

from __future__ import annotations

from fedprox.methods.method import Method

__all__ = ["fedavg"]


def fedavg() -> Method:
    """Return FedAvg: no proximal term, stragglers are dropped."""
    return Method("fedavg", keeps_partial_work=False)
