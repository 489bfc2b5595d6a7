"""The largest and smallest eigenvalue of a symmetric matrix that is known only by its products with vectors.

The Lanczos method builds an orthonormal basis q_1, ..., q_m of {v, Hv, H^2 v, ...} in which H is tridiagonal. The
extreme eigenvalues of that small matrix approach those of H from inside. Each comes with the norm of its residual,
||H u - theta u|| = beta_m |s_m|: H has an eigenvalue at most that far from theta. Every new vector is made orthogonal
to all earlier ones, twice, since rounding would otherwise bring back eigenvalues that have been found.

`scipy.sparse.linalg.eigsh` is not suitable: it returns no residuals, which bound the error of an estimate, it raises if
it has not converged, and its restarts take more products, each of which is a pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Extremes", "lanczos"]

Vector = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Extremes:
    """The two ends of a spectrum."""

    largest: float
    smallest: float
    residual: float  # the larger one of both eigenvalues
    products: int  # how many products with vectors it took


def lanczos(
    product: Callable[[NDArray[np.float64]], Vector],
    start: NDArray[np.float64],
    *,
    most: int = 100,
    tolerance: float = 1e-3,
) -> Extremes:
    """Return the extreme eigenvalues of the matrix H with `product(v)` = H v.

    It stops after `most` products, or when both residuals are below `tolerance` times the largest absolute value.

    >>> matrix = np.diag([3.0, 1.0, -2.0])
    >>> found = lanczos(lambda v: matrix @ v, start=np.ones(3))
    >>> round(found.largest, 6), round(found.smallest, 6)
    (3.0, -2.0)
    """
    most = min(most, len(start))
    basis = np.zeros((most, len(start)))
    basis[0] = start / np.linalg.norm(start)
    diagonal: list[float] = []
    beside: list[float] = []
    for m in range(1, most + 1):
        image = np.array(product(basis[m - 1]), np.float64)
        diagonal.append(float(image @ basis[m - 1]))
        for _ in range(2):
            image -= basis[:m].T @ (basis[:m] @ image)
        rest = float(np.linalg.norm(image))
        found = _extremes(diagonal, beside, rest)
        scale = max(abs(found.largest), abs(found.smallest))
        # the rest may be only the rounding of products in single precision
        if m == most or rest <= 1e-6 * scale or found.residual <= tolerance * scale:
            break
        beside.append(rest)
        basis[m] = image / rest
    return found


def _extremes(diagonal: list[float], beside: list[float], rest: float) -> Extremes:
    small = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    values, vectors = np.linalg.eigh(small)
    residual = rest * float(max(abs(vectors[-1, 0]), abs(vectors[-1, -1])))
    return Extremes(float(values[-1]), float(values[0]), residual, len(diagonal))
