"""A server step longer than the mean, depending on how far the devices' updates agree.

With the updates D_k = w_k - w^t and the round's weights (which sum to 1), the server goes

    w^{t+1} = m + (step - 1) (m - w^t),        m = sum_k weight_k w_k

where `step` is 1 for the mean itself. A rule for it needs two numbers: the mean of ||D_k||^2, which the devices send
beside their models as one number each, and ||m - w^t||^2. Their ratio is 1 where all updates are equal and grows as
they become orthogonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedprox.core.trees import Tree, difference, scale, squared_distance, total
from fedprox.methods.method import Method, Reply, Solution

__all__ = ["Extrapolated", "Extrapolation", "extrapolate"]

Extrapolation = Annotated[
    Annotated[float, Field(ge=1, le=1e30, allow_inf_nan=False)] | Literal["auto"],
    Field(description="a number >= 1, or 'auto'"),
]


@dataclass(frozen=True)
class Extrapolated(Method):
    """A method with an extrapolated server step; what differs between such methods is `step`."""

    extrapolation: Extrapolation = "auto"

    def step(self, moved2: float, norm2: float) -> float:
        """Return the step from ||m - w^t||^2, which is > 0, and the mean of ||D_k||^2."""
        raise NotImplementedError

    def reply(self, solution: Solution) -> Reply:
        """Send w_k and ||w_k - w^t||^2."""
        norm2 = squared_distance(solution.params, solution.anchor)
        return Reply({"model": solution.params, "norm2": np.float64(norm2)})

    def unmoved(self, params: Tree) -> Tree:
        """Return w^t and 0."""
        return {"model": params, "norm2": np.float64(0)}

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Take the extrapolated step."""
        mean = averaged["model"]
        moved2 = squared_distance(mean, params)
        return extrapolate(params, mean, self._chosen_step(moved2, float(averaged["norm2"]))), server

    def averaged_model(self, averaged: Tree | None, merged: Tree) -> Tree:
        """Return m."""
        return merged if averaged is None else averaged["model"]

    def _chosen_step(self, moved2: float, norm2: float) -> float:
        if self.extrapolation != "auto":
            return self.extrapolation
        return max(1.0, self.step(moved2, norm2)) if moved2 > 0 else 1.0


def extrapolate(params: Tree, mean: Tree, step: float) -> Tree:
    """Return m + (step - 1) (m - w^t), which is m bit for bit where the step is 1.

    >>> extrapolate(np.float32(1), np.float32(3), 2.0)
    np.float32(5.0)
    """
    return mean if step == 1 else total(mean, scale(difference(mean, params), step - 1))
