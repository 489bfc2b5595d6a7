"""SciPy's minimisers as local solvers: `scipy.optimize.minimize` on h_k.

Every evaluation of h_k and its gradient, and every product with its Hessian, costs ceil(n_k / b) steps. When the budget
does not cover the next one, or an iterate is gamma-inexact, SciPy is stopped; the device returns the best point that
was evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedprox.core.extras import needs_extra
from fedprox.core.trees import Tree
from fedprox.solvers.oracle import Oracle, Point, Vector
from fedprox.solvers.solver import LocalProblem

with needs_extra("scipy", "`fedprox.adapters.scipy`"):
    import scipy.optimize

__all__ = ["ScipySolver", "scipy_solver"]

_WITHOUT_GRADIENT = {"nelder-mead", "powell", "cobyla", "cobyqa"}
_WITH_CURVATURE = {"newton-cg", "trust-ncg", "trust-krylov", "trust-constr"}


def scipy_solver(method: str = "L-BFGS-B", **options: Any) -> ScipySolver:
    """Return a method of `scipy.optimize.minimize`, with its options.

    >>> scipy_solver("BFGS", gtol=1e-3).name
    'scipy.BFGS'
    """
    return ScipySolver(method, options)


class _Enough(Exception):  # noqa: N818 - not an error: it ends SciPy's loop
    """The budget is spent, or gamma is met."""


@dataclass(frozen=True)
class ScipySolver:
    """A method of `scipy.optimize.minimize`."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_sgd: bool = False

    @property
    def name(self) -> str:
        """Its name in records."""
        return f"scipy.{self.method}"

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Minimise h_k up to the budget or until gamma-inexact."""
        seen = _Seen(local)
        has_curvature = self.method.lower() in _WITH_CURVATURE
        if not seen.oracle.affords(1):
            seen.oracle.compile(has_curvature)
            return local.start, 0
        has_gradient = self.method.lower() not in _WITHOUT_GRADIENT
        with suppress(_Enough):
            scipy.optimize.minimize(
                seen.value_and_gradient if has_gradient else lambda at: seen.value_and_gradient(at)[0],
                seen.oracle.start,
                method=self.method,
                jac=has_gradient or None,
                hessp=seen.curvature if has_curvature else None,
                options=dict(self.options),
            )
        return seen.oracle.tree(seen.best.at), seen.oracle.spent


class _Seen:
    """The evaluations so far, and the best of them."""

    def __init__(self, local: LocalProblem) -> None:
        self.oracle = Oracle(local)
        self.best: Point
        self._last: Point | None = None
        self._gamma = local.gamma
        self._norm_at_start: float | None = None

    def value_and_gradient(self, at: Vector) -> tuple[float, Vector]:
        place = self.oracle.rounded(at)
        if self._last is None or not (place == self._last.at).all():
            self._pay()
            self._last = self.oracle.point(place)
            if self._norm_at_start is None:
                self._norm_at_start, self.best = self._last.norm, self._last
            if self._last.norm <= self._gamma * self._norm_at_start:
                self.best = self._last
                raise _Enough
            if self._last.value < self.best.value:
                self.best = self._last
        return self._last.value, self._last.gradient

    def curvature(self, at: Vector, along: Vector) -> Vector:
        self._pay()
        return self.oracle.curvature(at, along)

    def _pay(self) -> None:
        if not self.oracle.affords(1):
            raise _Enough
