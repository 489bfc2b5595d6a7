"""Rates: the convex case, the number of rounds, and the comparison with SGD."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedprox.theory.decrease import check_domain

__all__ = ["ConvexChoice", "convex_choice", "iteration_complexity", "rounds_to"]


@dataclass(frozen=True)
class ConvexChoice:
    """The mu and rho of Corollary 7, and whether its condition B <= sqrt(K) / 2 holds.

    Both numbers are the paper's approximations, for 1 << B <= sqrt(K) / 2; `rho` is not Theorem 4 at this mu.
    """

    mu: float
    rho: float
    in_range: bool


def convex_choice(*, B: float, L: float, K: float) -> ConvexChoice:
    """Return mu = 6 L B^2 and rho = 1 / (24 L B^2) of Corollary 7: convex F_k, solved exactly (gamma = 0).

    The paper bounds the decrease by 1/(2 mu) - 3 L B^2 / (2 mu^2), having dropped smaller terms; at mu = 6 L B^2 that
    is 1/(24 L B^2). Theorem 4 at this mu is smaller, and may be negative: for K = 4 B^2, the end of the range,
    sqrt(2) B / sqrt(K) is 0.71 and not the 0.5 of the approximation. Use `best_mu` for what Theorem 4 says.

    >>> convex_choice(B=2.0, L=0.5, K=16)
    ConvexChoice(mu=12.0, rho=0.020833333333333332, in_range=True)
    """
    check_domain(B=B, L=L, K=K)
    return ConvexChoice(6 * L * B * B, 1 / (24 * L * B * B), math.sqrt(K) >= 2 * B)


def rounds_to(*, epsilon: float, rho: float, delta: float) -> int:
    """Return T = ceil(delta / (rho epsilon)) of Theorem 6: the mean of E||grad f(w^t)||^2, t < T, is at most epsilon.

    The theorem states the order; this constant, 1, is what its proof gives. Summing Theorem 4 over t = 0, ..., T - 1
    leaves rho sum_t E||grad f(w^t)||^2 <= f(w^0) - f* = delta. It needs rho > 0 in each of these rounds.

    >>> rounds_to(epsilon=0.1, rho=0.05, delta=2.0)
    400
    """
    for name, value in (("epsilon", epsilon), ("rho", rho)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number > 0; got {value}")
    _check_delta(delta)
    return math.ceil(delta / (rho * epsilon) * (1 - 1e-12))  # not one more for the rounding of the quotient


def iteration_complexity(*, L: float, delta: float, sigma2: float, epsilon: float) -> float:
    """Return L delta / epsilon + L delta sigma2 / epsilon^2, the order of the number of rounds in Remark 8.

    That is for convex F_k, solved exactly, with variance of at most sigma2 and mu large enough. With the numbers of
    Corollary 7 and B^2 = 1 + sigma2 / epsilon the constant before it is 24.

    >>> iteration_complexity(L=1.0, delta=2.0, sigma2=0.5, epsilon=0.1)
    120.0
    """
    check_domain(L=L)
    _check_delta(delta)
    if not (sigma2 >= 0 and math.isfinite(sigma2)):
        raise ValueError(f"sigma2 must be a finite number >= 0; got {sigma2}")
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be a finite number > 0; got {epsilon}")
    return L * delta / epsilon * (1 + sigma2 / epsilon)


def _check_delta(delta: float) -> None:
    if not (delta >= 0 and math.isfinite(delta)):
        raise ValueError(f"delta must be a finite number >= 0, the first loss minus the smallest one; got {delta}")
