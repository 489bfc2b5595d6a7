"""The paper's theory as tools: what a setting guarantees, which settings are covered, and estimates from data.

>>> from fedprox import theory
>>> theory.rho(mu=8.0, gamma=0.0, B=1.0, K=8, L=1.0)
0.01953125
>>> theory.best_mu(gamma=0.0, B=1.0, K=8, L=1.0).value
11.0

Formulas need no data; estimates and certificates do, and import JAX when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedprox.theory.admissible import Condition, conditions, failing, margin
from fedprox.theory.choices import Choice, best_mu, largest_gamma, smallest_k, smallest_mu
from fedprox.theory.decrease import dissimilarity_bound, rho, rho_bounded_variance, rho_variable
from fedprox.theory.family import (
    admm_gap,
    fedexprox_gap,
    fedexprox_largest_step,
    sdane_gap,
    sdane_smallest_mu,
    sdane_step_holds,
)
from fedprox.theory.rates import ConvexChoice, convex_choice, iteration_complexity, rounds_to

if TYPE_CHECKING:
    from fedprox.theory.certificate import Certificate, NotCoveredError, certify
    from fedprox.theory.estimates import Smoothness, curvature, dissimilarity_along, global_curvature, smoothness
    from fedprox.theory.family_certificate import FamilyCertificate, certify_family

_HOME = {
    "Certificate": "fedprox.theory.certificate",
    "FamilyCertificate": "fedprox.theory.family_certificate",
    "NotCoveredError": "fedprox.theory.certificate",
    "Smoothness": "fedprox.theory.estimates",
    "certify": "fedprox.theory.certificate",
    "certify_family": "fedprox.theory.family_certificate",
    "curvature": "fedprox.theory.estimates",
    "dissimilarity_along": "fedprox.theory.estimates",
    "global_curvature": "fedprox.theory.estimates",
    "smoothness": "fedprox.theory.estimates",
}

__all__ = [
    "Certificate",
    "Choice",
    "Condition",
    "ConvexChoice",
    "FamilyCertificate",
    "NotCoveredError",
    "Smoothness",
    "admm_gap",
    "best_mu",
    "certify",
    "certify_family",
    "conditions",
    "convex_choice",
    "curvature",
    "dissimilarity_along",
    "dissimilarity_bound",
    "failing",
    "fedexprox_gap",
    "fedexprox_largest_step",
    "global_curvature",
    "iteration_complexity",
    "largest_gamma",
    "margin",
    "rho",
    "rho_bounded_variance",
    "rho_variable",
    "rounds_to",
    "sdane_gap",
    "sdane_smallest_mu",
    "sdane_step_holds",
    "smallest_k",
    "smallest_mu",
    "smoothness",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedprox.theory' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
