"""FedYogi (Reddi et al., "Adaptive Federated Optimization", 2021): the server takes Yogi steps.

FedAdam with another second moment, which moves by a bounded share of D^2 whatever its own size:

    v <- v - (1 - beta2) D^2 sign(v - D^2)

As in FedAvg, stragglers are dropped with their partial work. In a round with no device left, model, m and v do not
change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedprox.methods.fedadam import FedAdam

__all__ = ["FedYogi"]


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedYogi: Yogi on the server; stragglers are dropped.

    >>> FedYogi().merge({"m": np.float32(0), "v": np.float32(1)}, np.float32(0), np.float32(0), ())[0]
    np.float32(0.0)
    """

    name: str = field(default="fedyogi", init=False)

    def second_moment(self, v: Any, square: Any) -> Any:
        """Return the new v of one leaf, given D^2."""
        return v - (1 - self.beta2) * square * np.sign(v - square)
