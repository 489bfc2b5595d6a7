"""Ridge regression in closed form: the solver that does not iterate.

For least squares h_k is quadratic, and one linear solve gives its minimum: with the rows a_i = (x_i, 1) of A,

    (A^T A / n_k + M) (w - s) = -(grad F_k(s) + c_k + M (s - a_k))

with M the diagonal matrix of mu, a_k the anchor and s where the device starts; both are w^t by default. It is solved in
double precision. If mu = 0 and the data do not determine all directions, the solution closest to s is taken. It costs
one epoch; with a smaller budget the device stays at s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree, to_numpy
from fedprox.solvers.solver import LocalProblem
from fedprox.solvers.subproblem import flat_mu

__all__ = ["closed_form"]

Matrix = NDArray[np.floating[Any]]


def closed_form() -> _ClosedForm:
    """Return the exact solver for the model linear_regression."""
    return _ClosedForm()


@dataclass(frozen=True)
class _ClosedForm:
    name: str = "closed_form"
    is_sgd: bool = False

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Return the minimiser of h_k."""
        if local.model.name != "linear_regression":
            raise ConfigError(
                f"`solver.name` = 'closed_form' must be used with the model linear_regression; got {local.model.name}"
            )
        if local.budget < local.steps_per_epoch:
            return local.start, 0
        problem = to_numpy(local.problem)
        anchor, linear = problem.anchor, problem.linear
        x, y = local.samples.of(local.device)
        rows = x.reshape(len(x), -1).astype(np.float64)
        if "bias" in anchor:
            rows = np.hstack([np.ones((len(rows), 1)), rows])
        start = _flat(to_numpy(local.start))
        mu = np.asarray(flat_mu(problem), np.float64)
        slope = rows.T @ (rows @ start - y) / len(rows)
        if linear is not None:
            slope += _flat(linear)
        if local.start_at is not None:
            slope += mu * (start - _flat(anchor))
        free = _flat(local.model.only_trained(jax.tree.map(np.ones_like, anchor))) > 0  # the others are frozen
        if not free.all():
            rows, mu, slope = rows[:, free], mu[free] if mu.ndim else mu, slope[free]
        found = start.copy()
        found[free] -= _ridge(rows / np.sqrt(len(rows)), mu, slope)
        return _like(anchor, found), local.steps_per_epoch


def _ridge(rows: Matrix, mu: Matrix, vector: Matrix) -> Matrix:
    """Return (R^T R + diag(mu))^-1 v, from the smaller of R^T R and R R^T; where a mu is 0 the shortest solution."""
    if mu.ndim == 0 and mu > 0 and rows.shape[0] < rows.shape[1]:
        inner = np.linalg.solve(rows @ rows.T + mu * np.eye(rows.shape[0]), rows @ vector)
        return (vector - rows.T @ inner) / mu
    normal = rows.T @ rows + mu * np.eye(rows.shape[1])
    if (mu > 0).all():
        return np.linalg.solve(normal, vector)
    solution: Matrix = np.linalg.lstsq(normal, vector)[0]
    return solution


def _flat(params: Tree) -> Matrix:
    """Return the parameters in the order of their names: bias, if there is one, and weight."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(np.float64)


def _like(params: Tree, flat: Matrix) -> Tree:
    leaves, structure = jax.tree.flatten(params)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = np.split(flat, ends[:-1])
    shaped = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)
