"""Local solvers: how a device works on its subproblem."""

from __future__ import annotations

from fedprox.config import SolverConfig
from fedprox.solvers.sgd import sgd
from fedprox.solvers.solver import Solver, fullbatch_program, minibatch_program

__all__ = ["Solver", "build", "fullbatch_program", "minibatch_program", "sgd"]


def build(config: SolverConfig) -> Solver:
    """Return the solver that the config names."""
    match config.name:
        case "sgd":
            return sgd()
