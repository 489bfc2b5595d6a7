"""rho: by how much one round of FedProx is sure to lower the loss, in expectation over the chosen devices.

    E[f(w^(t+1))] <= f(w^t) - rho ||grad f(w^t)||^2                                            (Theorem 4)

    rho = 1/mu - gamma B/mu - sqrt(2) B (1 + gamma) / (mu_bar sqrt(K)) - L B (1 + gamma) / (mu_bar mu)
          - L B^2 (1 + gamma)^2 / (2 mu_bar^2) - L B^2 (1 + gamma)^2 (2 sqrt(2 K) + 2) / (mu_bar^2 K)

with mu_bar = mu - L_minus > 0. The statement is meaningful for rho > 0; these functions also return other values of
rho. It takes K independent draws of devices with probabilities p_k, merged with weight 1/K (Algorithm 2), F_k that are
L-smooth with curvature of at least -L_minus, B >= B(w^t) (Definition 3), and solutions that are gamma-inexact
(Definition 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["check_domain", "dissimilarity_bound", "rho", "rho_bounded_variance", "rho_variable"]


def rho(*, mu: float, gamma: float, B: float, K: float, L: float, L_minus: float = 0.0) -> float:
    """Return rho of Theorem 4.

    Args:
      mu: the proximal coefficient, > L_minus.
      gamma: the inexactness of the local solutions, in [0, 1].
      B: the dissimilarity of the devices at w^t, >= 1.
      K: the number of draws in a round, >= 1.
      L: the smoothness of the F_k, > 0.
      L_minus: the most negative curvature of the F_k, as a number >= 0; 0 for convex F_k.

    Raises ValueError outside of these ranges.

    >>> rho(mu=8.0, gamma=0.0, B=1.0, K=8, L=1.0)  # 1/8 - 1/16 - 1/64 - 1/128 - 10/512
    0.01953125
    """
    check_domain(gamma=gamma, B=B, K=K, L=L, L_minus=L_minus, mu=mu)
    mu_bar = mu - L_minus
    drift = B * (1 + gamma)  # a device moves by at most drift / mu_bar * ||grad f(w^t)||, in the mean
    return (
        (1 - gamma * B) / mu
        - math.sqrt(2 / K) * drift / mu_bar
        - L * drift / (mu_bar * mu)
        - L * drift**2 / (2 * mu_bar**2)
        - L * drift**2 * (2 * math.sqrt(2 * K) + 2) / (mu_bar**2 * K)
    )


def rho_variable(*, mu: float, gammas: Iterable[float], B: float, K: float, L: float, L_minus: float = 0.0) -> float:
    """Return rho^t of Corollary 9: Theorem 4 with gamma^t, the largest of the devices' gamma_k^t.

    The corollary takes the largest over the chosen devices. Its proof bounds means over all devices, so a statement
    about the expectation needs the largest over all devices; which ones are meant is the caller's choice.

    >>> rho_variable(mu=8.0, gammas=[0.0, 0.1, 0.02], B=1.0, K=50, L=0.5) == rho(mu=8.0, gamma=0.1, B=1.0, K=50, L=0.5)
    True
    """
    values = [float(gamma) for gamma in gammas]
    if not values:
        raise ValueError("gammas must hold the inexactness of at least one device; got none")
    if any(math.isnan(value) for value in values):
        raise ValueError("gammas must be numbers in [0, 1]; got nan")
    if min(values) < 0:
        raise ValueError(f"gammas must be numbers in [0, 1]; got {min(values)}")
    return rho(mu=mu, gamma=max(values), B=B, K=K, L=L, L_minus=L_minus)


def rho_bounded_variance(
    *, mu: float, gamma: float, K: float, L: float, sigma2: float, epsilon: float, L_minus: float = 0.0
) -> float:
    """Return rho of the bounded-variance theorem of the appendix (Theorem 11).

    It holds at w^t with ||grad f(w^t)||^2 >= epsilon, where E_k ||grad F_k(w) - grad f(w)||^2 <= sigma2. It is
    Theorem 4 with B replaced by its bound sqrt(1 + sigma2 / epsilon) (Corollary 10).

    >>> rho_bounded_variance(mu=8.0, gamma=0.0, K=8, L=1.0, sigma2=0.0, epsilon=0.1)  # B = 1
    0.01953125
    """
    return rho(mu=mu, gamma=gamma, B=dissimilarity_bound(sigma2=sigma2, epsilon=epsilon), K=K, L=L, L_minus=L_minus)


def dissimilarity_bound(*, sigma2: float, epsilon: float) -> float:
    """Return sqrt(1 + sigma2 / epsilon), which B_epsilon does not exceed (Corollary 10).

    >>> dissimilarity_bound(sigma2=3.0, epsilon=1.0)
    2.0
    """
    _check("sigma2", sigma2, sigma2 >= 0, ">= 0")
    _check("epsilon", epsilon, epsilon > 0, "> 0")
    return math.sqrt(1 + sigma2 / epsilon)


def check_domain(
    *,
    gamma: float | None = None,
    B: float | None = None,
    K: float | None = None,
    L: float | None = None,
    L_minus: float | None = None,
    mu: float | None = None,
) -> None:
    """Raise ValueError with a sentence where a constant is outside the domain of the theorems; None is not checked."""
    if gamma is not None:
        _check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    if B is not None:
        _check("B", B, B >= 1, ">= 1")
    if K is not None:
        _check("K", K, K >= 1, ">= 1")
    if L is not None:
        _check("L", L, L > 0, "> 0")
    if L_minus is not None:
        _check("L_minus", L_minus, L_minus >= 0, ">= 0")
    if mu is not None:
        _check("mu", mu, mu > (L_minus or 0.0), f"> L_minus = {L_minus or 0.0}")


def _check(name: str, value: float, inside: bool, rule: str) -> None:
    if not (inside and math.isfinite(value)):  # NaN is never inside
        raise ValueError(f"{name} must be a finite number {rule}; got {value}")
