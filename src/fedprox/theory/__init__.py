"""The paper's theory as tools: what a setting guarantees, which settings are covered, and what the data say.

>>> from fedprox import theory
>>> theory.rho(mu=8.0, gamma=0.0, B=1.0, K=8, L=1.0)
0.01953125
>>> theory.best_mu(gamma=0.0, B=1.0, K=8, L=1.0).value
11.0
"""

from __future__ import annotations

from fedprox.theory.choices import Answer, best_mu, largest_gamma, smallest_k, smallest_mu
from fedprox.theory.conditions import Condition, conditions, failing, margin
from fedprox.theory.decrease import dissimilarity_bound, rho, rho_bounded_variance, rho_variable
from fedprox.theory.rates import ConvexChoice, convex_choice, iteration_complexity, rounds_to

__all__ = [
    "Answer",
    "Condition",
    "ConvexChoice",
    "best_mu",
    "conditions",
    "convex_choice",
    "dissimilarity_bound",
    "failing",
    "iteration_complexity",
    "largest_gamma",
    "margin",
    "rho",
    "rho_bounded_variance",
    "rho_variable",
    "rounds_to",
    "smallest_k",
    "smallest_mu",
]
