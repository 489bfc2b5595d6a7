r"""When some mu makes rho of Theorem 4 positive.

Necessary (Remark 5): gamma B < 1 and B < sqrt(K).

Sharp: some mu > L_minus gives rho > 0 exactly when

    gamma B + sqrt(2) B (1 + gamma) / sqrt(K) < 1.

Proof. Write A = 1 - gamma B - s with s = sqrt(2) B (1 + gamma) / sqrt(K).
If rho > 0 then (1 - gamma B) / mu > s / mu_bar, since the other terms of rho are negative; and s / mu_bar >= s / mu,
since mu_bar <= mu. So A > 0.
If A > 0 then mu rho -> A as mu grows, since mu / mu_bar -> 1 and the remaining terms fall as 1 / mu. So rho > 0 for
every mu that is large enough. `fedprox.theory.smallest_mu` returns how large.

The sharp condition does not involve L or L_minus: smoothness decides how large mu has to be, not whether there is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedprox.theory.decrease import check_domain

__all__ = ["Condition", "conditions", "failing", "margin"]


@dataclass(frozen=True)
class Condition:
    """A condition of the form `value` < `limit`, and whether it holds."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the value is below the limit."""
        return self.value < self.limit

    def __str__(self) -> str:
        return f"{self.name} {'holds' if self.holds else 'fails'}: {self.value:.4g} against {self.limit:.4g}"


def conditions(*, gamma: float, B: float, K: float) -> tuple[Condition, Condition, Condition]:
    """Return the two necessary conditions of Remark 5 and the sharp one.

    >>> for condition in conditions(gamma=0.5, B=1.5, K=100):
    ...     print(condition)
    gamma*B < 1 holds: 0.75 against 1
    B < sqrt(K) holds: 1.5 against 10
    gamma*B + sqrt(2)*B*(1 + gamma)/sqrt(K) < 1 fails: 1.068 against 1
    """
    check_domain(gamma=gamma, B=B, K=K)
    sharp = gamma * B + math.sqrt(2 / K) * B * (1 + gamma)
    return (
        Condition("gamma*B < 1", gamma * B, 1.0),
        Condition("B < sqrt(K)", B, math.sqrt(K)),
        Condition("gamma*B + sqrt(2)*B*(1 + gamma)/sqrt(K) < 1", sharp, 1.0),
    )


def failing(*, gamma: float, B: float, K: float) -> Condition | None:
    """Return the first condition that fails, the simplest ones first; None where some mu gives rho > 0.

    >>> print(failing(gamma=0.8, B=2.0, K=100))
    gamma*B < 1 fails: 1.6 against 1
    """
    return next((condition for condition in conditions(gamma=gamma, B=B, K=K) if not condition.holds), None)


def margin(*, gamma: float, B: float, K: float) -> float:
    """Return A = 1 - gamma B - sqrt(2) B (1 + gamma) / sqrt(K), the limit of mu * rho for large mu.

    >>> margin(gamma=0.0, B=1.0, K=8)
    0.5
    """
    sharp = conditions(gamma=gamma, B=B, K=K)[2]
    return sharp.limit - sharp.value
