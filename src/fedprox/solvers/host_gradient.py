"""The gradient of a device's loss for a model that computes on the host (`fedprox.models.host_model`)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedprox.core.trees import Tree, to_numpy
from fedprox.models.host_model import HostModel

__all__ = ["host_gradient"]


def host_gradient(host: HostModel, params: Tree, x: Any, y: Any, span: Any) -> Tree:
    """Return grad F_k(params) over the rows of span = (begin, count); zeros where there are none."""
    begin, count = (int(number) for number in span)
    params = to_numpy(params)
    if count == 0:
        return jax.tree.map(np.zeros_like, params)
    rows = slice(begin, begin + count)
    with host.at(params) as model:
        sums = model.sums(np.asarray(x)[rows], np.asarray(y)[rows])
    return jax.tree.map(lambda leaf: leaf / leaf.dtype.type(count), sums.gradient)
