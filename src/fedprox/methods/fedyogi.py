"""FedYogi (Reddi et al., "Adaptive Federated Optimization", 2021): the server takes Yogi steps.

FedAdam with another second moment, which moves by a bounded share of D^2 whatever its own size:

    v <- v - (1 - beta2) D^2 sign(v - D^2)

As in FedAvg, stragglers are dropped, partial work with them. In a round with nobody left, model, m and v stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedprox.methods.fedadam import AdaptiveServer
from fedprox.methods.method import Method

__all__ = ["fedyogi"]


def fedyogi(server_learning_rate: float = 0.03, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Method:
    """Return FedYogi: Yogi on the server; stragglers are dropped.

    >>> fedyogi().merge({"m": np.float32(0), "v": np.float32(1)}, np.float32(0), np.float32(0), ())[0]
    np.float32(0.0)
    """
    return _FedYogi("fedyogi", server_learning_rate=server_learning_rate, beta1=beta1, beta2=beta2, tau=tau)


@dataclass(frozen=True)
class _FedYogi(AdaptiveServer):
    def second_moment(self, v: Any, square: Any) -> Any:
        return v - (1 - self.beta2) * square * np.sign(v - square)
