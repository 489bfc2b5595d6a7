"""Stochastic gradient descent, the paper's local solver: w <- w - eta * grad h_k(w; w^t) on a mini-batch."""

from __future__ import annotations

import jax

from fedprox.solvers.solver import Solver
from fedprox.trees import Tree

__all__ = ["sgd"]


def sgd() -> Solver:
    """Return plain SGD."""
    return Solver("sgd", _init, _step)


def _init(params: Tree) -> Tree:
    return ()


def _step(params: Tree, gradient: Tree, state: Tree, learning_rate: jax.Array) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda param, slope: param - learning_rate * slope, params, gradient), state
