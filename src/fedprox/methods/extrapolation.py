"""A server step longer than the mean, by how much the updates of the devices agree.

With the updates D_k = w_k - w^t and the round's weights (which sum to 1), the server goes

    w^{t+1} = m + (step - 1) (m - w^t),        m = sum_k weight_k w_k

where `step` is 1 for the mean itself. A rule for it needs two numbers: the mean of ||D_k||^2, which the devices send
beside their models as one number each, and ||m - w^t||^2. Their ratio is 1 where all updates are equal and grows as
they become orthogonal.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedprox.core.trees import Tree, difference, scale, squared_distance, total
from fedprox.methods.method import Reply, Solution

__all__ = ["Extrapolation", "extrapolate", "reply_with_norm"]

Extrapolation = Annotated[
    Annotated[float, Field(ge=1, le=1e30, allow_inf_nan=False)] | Literal["auto"],
    Field(description="a number >= 1, or 'auto'"),
]


def reply_with_norm(solution: Solution) -> Reply:
    """Send w_k and ||w_k - w^t||^2."""
    return Reply({"model": solution.params, "norm2": np.float64(squared_distance(solution.params, solution.anchor))})


def extrapolate(params: Tree, mean: Tree, step: float) -> Tree:
    """Return m + (step - 1) (m - w^t), which is m bit for bit where the step is 1.

    >>> extrapolate(np.float32(1), np.float32(3), 2.0)
    np.float32(5.0)
    """
    return mean if step == 1 else total(mean, scale(difference(mean, params), step - 1))
