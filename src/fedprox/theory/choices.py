"""The inverse questions: which mu, gamma or K make rho of Theorem 4 positive, if any.

With b = mu_bar = mu - L_minus, A the margin of the sharp condition and s = sqrt(2) B (1 + gamma) / sqrt(K),

    rho = (A b^2 - E b - F) / ((b + L_minus) b^2)
    E   = s L_minus + L B (1 + gamma) + c,    F = c L_minus,    c = L B^2 (1 + gamma)^2 (1/2 + (2 sqrt(2K) + 2) / K).

For A > 0 the numerator has exactly one root b >= 0 (the product of its roots is -F/A <= 0): rho is positive for every
mu beyond it, and negative below. Setting the derivative to zero gives A b^3 - 2 E b^2 - (E L_minus + 3 F) b - 2 F
L_minus = 0, whose coefficients change sign once: there is exactly one best mu. For L_minus = 0 it is 2 E / A, twice the
smallest one, with rho = A^2 / (4 E). For A <= 0 there is none.

In gamma and in 1/sqrt(K), rho is a falling quadratic, so that the largest gamma and the smallest K are roots too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedprox.theory.admissible import failing, margin
from fedprox.theory.decrease import check_domain, rho

__all__ = ["Choice", "best_mu", "largest_gamma", "smallest_k", "smallest_mu"]


@dataclass(frozen=True)
class Choice:
    """The requested value, or None if there is none; `because` explains it, or names the rule that fails."""

    value: float | None
    because: str


def smallest_mu(*, gamma: float, B: float, K: float, L: float, L_minus: float = 0.0) -> Choice:
    """Return the mu beyond which rho > 0; at this mu itself rho is 0.

    >>> smallest_mu(gamma=0.0, B=1.0, K=8, L=1.0).value  # A = 1/2, c = 1/2 + 10/8, (L B + c) / A
    5.5
    >>> smallest_mu(gamma=0.0, B=2.0, K=4, L=1.0).because
    'no mu gives rho > 0: B < sqrt(K) fails: 2 against 2'
    """
    check_domain(gamma=gamma, B=B, K=K, L=L, L_minus=L_minus)
    if (none := _no_mu(gamma, B, K)) is not None:
        return none
    A, E, F = _numerator(gamma, B, K, L, L_minus)
    root = (E + math.sqrt(E * E + 4 * A * F)) / (2 * A)
    return Choice(root + L_minus, "rho > 0 for every mu above this one, and for none below")


def best_mu(*, gamma: float, B: float, K: float, L: float, L_minus: float = 0.0) -> Choice:
    """Return the mu with the largest rho.

    >>> best_mu(gamma=0.0, B=1.0, K=8, L=1.0).value
    11.0
    """
    check_domain(gamma=gamma, B=B, K=K, L=L, L_minus=L_minus)
    if (none := _no_mu(gamma, B, K)) is not None:
        return none
    A, E, F = _numerator(gamma, B, K, L, L_minus)
    if L_minus == 0:
        mu = 2 * E / A
    else:
        roots = np.roots([A, -2 * E, -(E * L_minus + 3 * F), -2 * F * L_minus])
        mu = float(roots.real.max()) + L_minus  # the only positive root
    value = rho(mu=mu, gamma=gamma, B=B, K=K, L=L, L_minus=L_minus)
    return Choice(mu, f"rho is largest here: {value:.6g}")


def largest_gamma(*, B: float, K: float, L: float, L_minus: float = 0.0, mu: float | None = None) -> Choice:
    """Return the gamma below which rho > 0: with this mu, or without it for some mu.

    At the value itself rho is 0, unless the value is 1: then every gamma in [0, 1] will do.

    >>> largest_gamma(B=1.0, K=8, L=1.0).value  # (1 - 1/2) / (1 + 1/2)
    0.3333333333333333
    >>> largest_gamma(B=1.0, K=8, L=1.0, mu=5.5).because
    'no gamma gives rho > 0: mu must be above 5.5 even for gamma = 0; got 5.5'
    """
    check_domain(B=B, K=K, L=L, L_minus=L_minus, mu=mu)
    exact = smallest_mu(gamma=0.0, B=B, K=K, L=L, L_minus=L_minus)
    if exact.value is None:
        return Choice(None, exact.because.replace("no mu gives rho > 0", "no gamma gives rho > 0, whatever mu"))
    if mu is None:
        s = math.sqrt(2 / K) * B
        gamma = (1 - s) / (B + s)
        return Choice(gamma, "for every gamma below this one some mu gives rho > 0, and for none above")
    if mu <= exact.value:
        rule = f"mu must be above {exact.value:.6g} even for gamma = 0; got {mu:.6g}"
        return Choice(None, f"no gamma gives rho > 0: {rule}")
    mu_bar = mu - L_minus
    # rho = (1 + B)/mu - linear (1 + gamma) - square (1 + gamma)^2
    linear = B / mu + math.sqrt(2 / K) * B / mu_bar + L * B / (mu_bar * mu)
    square = L * B * B * (0.5 + (2 * math.sqrt(2 * K) + 2) / K) / mu_bar**2
    gamma = _positive_root(square, linear, (1 + B) / mu) - 1
    if gamma > 1:
        return Choice(1.0, "rho > 0 for every gamma in [0, 1]")
    return Choice(gamma, "rho > 0 for every gamma below this one, and for none above")


def smallest_k(*, gamma: float, B: float, L: float, L_minus: float = 0.0, mu: float | None = None) -> Choice:
    """Return the smallest integer K with rho > 0: with this mu, or without it for some mu.

    >>> smallest_k(gamma=0.0, B=2.0, L=1.0).value  # K > 2 B^2
    9
    >>> smallest_k(gamma=0.5, B=2.0, L=1.0).because
    'no K gives rho > 0, whatever mu: gamma*B < 1 fails: 1 against 1'
    """
    check_domain(gamma=gamma, B=B, L=L, L_minus=L_minus, mu=mu)
    if gamma * B >= 1:
        return Choice(None, f"no K gives rho > 0, whatever mu: gamma*B < 1 fails: {gamma * B:.4g} against 1")
    drift = B * (1 + gamma)
    if mu is None:
        u = (1 - gamma * B) / (math.sqrt(2) * drift)  # of u = 1/sqrt(K)
        found = _first_whole(u, lambda K: failing(gamma=gamma, B=B, K=K) is None)
        return Choice(found, "with this K some mu gives rho > 0, with a smaller one none")
    mu_bar = mu - L_minus
    rest = (1 - gamma * B) / mu - L * drift / (mu_bar * mu) - L * drift**2 / (2 * mu_bar**2)
    if rest <= 0:
        return Choice(None, f"no K gives rho > 0 with mu = {mu:.6g}: mu is too small even for K without limit")
    # rho = rest - linear / sqrt(K) - square / K
    square = 2 * L * drift**2 / mu_bar**2
    linear = math.sqrt(2) * (drift / mu_bar + square)
    u = _positive_root(square, linear, rest)
    found = _first_whole(u, lambda K: rho(mu=mu, gamma=gamma, B=B, K=K, L=L, L_minus=L_minus) > 0)
    return Choice(found, "rho > 0 with this K and every larger one, with a smaller one not")


def _no_mu(gamma: float, B: float, K: float) -> Choice | None:
    broken = failing(gamma=gamma, B=B, K=K)
    return None if broken is None else Choice(None, f"no mu gives rho > 0: {broken}")


def _numerator(gamma: float, B: float, K: float, L: float, L_minus: float) -> tuple[float, float, float]:
    """Return A, E and F of the module's docstring."""
    drift = B * (1 + gamma)
    c = L * drift**2 * (0.5 + (2 * math.sqrt(2 * K) + 2) / K)
    return margin(gamma=gamma, B=B, K=K), math.sqrt(2 / K) * drift * L_minus + L * drift + c, c * L_minus


def _positive_root(square: float, linear: float, constant: float) -> float:
    """Return the x > 0 with square x^2 + linear x = constant, without the cancellation of the textbook formula."""
    return 2 * constant / (linear + math.sqrt(linear * linear + 4 * square * constant))


def _first_whole(u: float, holds: Callable[[int], bool]) -> int:
    """Return the smallest integer K >= 1 that holds, given that it is 1/u^2 up to rounding."""
    K = max(1, math.floor(1 / (u * u)) + 1)
    while not holds(K):
        K += 1
    while K > 1 and holds(K - 1):
        K -= 1
    return K
