"""FedAvg (Algorithm 1; McMahan et al., 2017).

Each chosen device takes E epochs of SGD on F_k from w^t, and the server averages the results. A device that cannot
finish in time is dropped. If all are dropped the model stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.methods.method import Method

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Method):
    """FedAvg: no proximal term, stragglers are dropped."""

    name: str = field(default="fedavg", init=False)
    keeps_partial_work: bool = field(default=False, init=False)
    sends_model_only: bool = field(default=True, init=False)
