"""Local solvers: how a device works on its subproblem."""

from __future__ import annotations

from fedprox.config import SolverConfig
from fedprox.solvers.sgd import sgd
from fedprox.solvers.solver import LocalProblem, Solver
from fedprox.solvers.stepwise import Stepwise, fullbatch_program, minibatch_program

__all__ = ["LocalProblem", "Solver", "Stepwise", "build", "fullbatch_program", "minibatch_program", "sgd"]


def build(config: SolverConfig) -> Solver:
    """Return the solver that the config names."""
    match config.name:
        case "sgd":
            return sgd(config.momentum, config.nesterov, config.weight_decay)
