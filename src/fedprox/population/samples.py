"""Samples of N devices, ragged, in one flat layout.

The samples of all devices are stored one after another in one array; `offsets` gives where each device begins. Nothing
is padded, a device is a slice, and p_k = n_k / n (the masses of Equation 1) follows from the offsets of the training
samples alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError

__all__ = ["Samples"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Samples:
    """Samples of all devices: rows offsets[k] to offsets[k + 1] of `x` and `y` belong to device k."""

    x: Array  # (rows, ...)
    y: Array  # (rows,)
    offsets: NDArray[np.int64]  # (devices + 1,)

    def __post_init__(self) -> None:
        rows = int(self.offsets[-1])
        if len(self.x) != rows or len(self.y) != rows:
            raise DataError(f"x and y must have {rows} rows, as the offsets say; got {len(self.x)} and {len(self.y)}")

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __repr__(self) -> str:
        return f"Samples(devices={len(self.offsets) - 1}, rows={len(self)}, shape={tuple(self.x.shape[1:])})"

    @property
    def width(self) -> int:
        """How many numbers an example has."""
        return math.prod(self.x.shape[1:])

    def size(self, device: int) -> int:
        """Return n_k, the number of samples of a device."""
        return int(self.offsets[device + 1] - self.offsets[device])

    def of(self, device: int) -> tuple[Array, Array]:
        """Return the samples (x, y) of a device, without a copy."""
        rows = slice(int(self.offsets[device]), int(self.offsets[device + 1]))
        return self.x[rows], self.y[rows]
