"""What is guaranteed for S-DANE, FedExProx and exact ADMM on convex problems, with all devices in every round.

**S-DANE** (`fedprox.methods.sdane`). Let all F_k be convex, x* a minimiser of f, and delta such that
||grad(F_k - f)(x) - grad(F_k - f)(y)|| <= delta ||x - y||. With e_k = grad h_k(w_k), S = sum_k p_k ||w_k - v^t||^2 and
E = sum_k p_k ||e_k||^2,

    f(w^{t+1}) - f(x*) <= (mu / 2) (||v^t - x*||^2 - ||v^{t+1} - x*||^2)        where E <= mu (mu - delta) S

Proof. By convexity f(x*) >= sum_k p_k (F_k(w_k) + <grad F_k(w_k), x* - w_k>), and the step of v turns the part of it
that is linear in x* into the two distances and -||sum_k p_k grad F_k(w_k)||^2 / (2 mu). With d_k = F_k - f, whose mean
is 0, sum_k p_k F_k(w_k) >= f(w^{t+1}) + sum_k p_k <grad d_k(v), w_k - v> - (delta / 2) S. Insert grad F_k(w_k) = e_k -
mu (w_k - v) + grad d_k(v): the terms with d_k cancel. Jensen's inequality for the square leaves f(w^{t+1}) +
(mu - delta) S / 2 - E / (2 mu). With ||e_k|| <= (mu / 2) ||w_k - v^t||, the source's accuracy, mu >= 4 delta / 3 is
enough. The source (Jiang, Rodomanov and Stich, 2024) has such a rate with constants of its own.

**FedExProx** (`fedprox.methods.fedexprox`). Exact proximal points of convex F_k make the round a step of gradient
descent on the mean M of their Moreau envelopes, of length `extrapolation` / mu; M is smooth with mu L / (mu + L). Where
some x* minimises every F_k (interpolation), it minimises M, and

    M(w^T) - M(x*) <= mu ||w^0 - x*||^2 / (2 extrapolation T)        for extrapolation <= 1 + mu / L

With "auto" (GraDS) ||w^{t+1} - x*||^2 <= ||w^t - x*||^2 - step sum_k p_k ||D_k||^2 in every round, since proximal
points are firmly nonexpansive: <-D_k, w^t - x*> >= ||D_k||^2. Without interpolation neither is claimed.

**Exact ADMM** (`fedprox.methods.fedadmm` with `penalty_factor` 1 and exact solutions), beta = mu. Let x* minimise f,
g_k = grad F_k(x*), so that sum_k p_k g_k = 0, and D_k(u) = F_k(u) - F_k(x*) - <g_k, u - x*> >= 0. Then

    sum_{t=1}^T sum_k p_k D_k(u_k^t) <= (beta / 2) ||w^0 - x*||^2 + sum_k p_k ||g_k||^2 / (2 beta)

Proof. Write u, l for u_k^t, lambda_k^t and u', l' for those of the next round; the optimality of u' is l' = grad
F_k(u') = l - beta (u' - w^t). By convexity sum p D_k(u') <= sum p <l' - g_k, u' - x*>. Replace u' - w^t by -(l' - l) /
beta and, since w^t = sum p (u - l / beta), sum p (l' - g_k) by beta sum p (u - u'): the right side is sum p (-<l' -
g_k, l' - l> / beta + beta <u - u', u' - x*> + <u - u', l' - l>). The last term is not positive where l = grad F_k(u),
from the second round on; in the first, with u = w^0 and l = 0, it is beta ||u' - u||^2 and cancels with what the next
step leaves. With 2 <a - b, a - c> = ||a - b||^2 + ||a - c||^2 - ||b - c||^2 the others are V - V', V = sum p (||l -
g_k||^2 / (2 beta) + (beta / 2) ||u - x*||^2), less ||l' - l||^2 / (2 beta) and (beta / 2) ||u' - u||^2. Sum over the
rounds.
"""

from __future__ import annotations

import math

__all__ = ["admm_gap", "fedexprox_gap", "fedexprox_largest_step", "sdane_gap", "sdane_smallest_mu", "sdane_step_holds"]


def sdane_step_holds(*, mu: float, delta: float, residual2: float, moved2: float) -> bool:
    """Return whether a round of S-DANE meets E <= mu (mu - delta) S: `residual2` is E, `moved2` is S.

    >>> sdane_step_holds(mu=4.0, delta=3.0, residual2=4.0, moved2=1.0)  # ||e_k|| = mu/2 ||w_k - v||, mu = 4/3 delta
    True
    >>> sdane_step_holds(mu=3.9, delta=3.0, residual2=3.8, moved2=1.0)
    False
    """
    _check(mu=mu)
    _check_not_negative(delta=delta, residual2=residual2, moved2=moved2)
    return residual2 <= mu * (mu - delta) * moved2


def sdane_smallest_mu(*, delta: float, accuracy: float = 0.5) -> float:
    """Return the mu from which on the condition holds with ||e_k|| <= accuracy mu ||w_k - v^t|| on every device.

    accuracy^2 mu^2 <= mu (mu - delta), so mu = delta / (1 - accuracy^2).

    >>> sdane_smallest_mu(delta=3.0)
    4.0
    """
    _check_not_negative(delta=delta)
    if not 0 <= accuracy < 1:
        raise ValueError(f"accuracy must be a number in [0, 1); got {accuracy}")
    return delta / (1 - accuracy**2)


def sdane_gap(*, mu: float, distance2: float, rounds: int) -> float:
    """Return mu ||w^0 - x*||^2 / (2 T), a bound on the mean of f(w^t) - f(x*) over rounds 1 to T.

    It needs the condition of `sdane_step_holds` in every round.

    >>> sdane_gap(mu=4.0, distance2=1.0, rounds=100)
    0.02
    """
    _check(mu=mu, rounds=rounds)
    _check_not_negative(distance2=distance2)
    return mu * distance2 / (2 * rounds)


def fedexprox_largest_step(*, mu: float, L: float) -> float:
    """Return 1 + mu / L, the largest constant extrapolation that `fedexprox_gap` covers.

    >>> fedexprox_largest_step(mu=1.0, L=0.5)
    3.0
    """
    _check(mu=mu, L=L)
    return 1 + mu / L


def fedexprox_gap(*, mu: float, L: float, extrapolation: float, distance2: float, rounds: int) -> float:
    """Return the bound on M(w^T) - M(x*) with a constant extrapolation.

    >>> fedexprox_gap(mu=1.0, L=0.5, extrapolation=2.0, distance2=1.0, rounds=10)
    0.025
    """
    _check(mu=mu, L=L, rounds=rounds, extrapolation=extrapolation)
    _check_not_negative(distance2=distance2)
    if extrapolation > fedexprox_largest_step(mu=mu, L=L):
        raise ValueError(f"extrapolation must be at most 1 + mu / L = {1 + mu / L:g}; got {extrapolation}")
    return mu * distance2 / (2 * extrapolation * rounds)


def admm_gap(*, mu: float, distance2: float, gradients2: float, rounds: int) -> float:
    """Return the bound on the mean over rounds 1 to T of sum_k p_k D_k(u_k^t); `gradients2` is sum_k p_k ||g_k||^2.

    >>> admm_gap(mu=2.0, distance2=1.0, gradients2=4.0, rounds=100)
    0.02
    """
    _check(mu=mu, rounds=rounds)
    _check_not_negative(distance2=distance2, gradients2=gradients2)
    return (mu * distance2 + gradients2 / mu) / (2 * rounds)


def _check(**given: float) -> None:
    for name, value in given.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number > 0; got {value}")


def _check_not_negative(**given: float) -> None:
    for name, value in given.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number >= 0; got {value}")
