"""What makes one federated method different from another; the loop asks a method nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprox.systems import Work

__all__ = ["Method"]


@dataclass(frozen=True)
class Method:
    """A federated method that averages the devices' solutions.

    Attributes:
      name: what it is called in configs and records.
      proximal: whether the subproblem has a proximal term; without one mu is 0.
      keeps_partial_work: whether stragglers' partial solutions are averaged, or the stragglers dropped.
    """

    name: str
    proximal: bool
    keeps_partial_work: bool

    def kept(self, work: Work) -> NDArray[np.bool_]:
        """Return which listed devices take part in the average."""
        return np.ones_like(work.straggler) if self.keeps_partial_work else ~work.straggler
