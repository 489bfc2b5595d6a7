"""The rows of each device that are set aside for testing or validation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, words

__all__ = ["split"]


def split(
    offsets: NDArray[np.int64], seed: int, share: float = 0.2, purpose: Purpose = Purpose.SPLIT
) -> NDArray[np.bool_]:
    """Mark floor(share * n_k) of each device's rows as test rows, drawn for (seed, device); never all of them."""
    is_test = np.zeros(int(offsets[-1]), bool)
    for device, (begin, end) in enumerate(pairwise(offsets.tolist())):
        size = end - begin
        order = np.argsort(words(size, seed, purpose, device=device), kind="stable")
        is_test[begin + order[: min(int(share * size), size - 1)]] = True
    return is_test
