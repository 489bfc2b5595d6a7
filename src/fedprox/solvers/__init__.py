"""Local solvers: how a device works on its subproblem."""

from __future__ import annotations

from typing import Any

from fedprox.config import Config, SolverConfig
from fedprox.config.part_keys import part_keys
from fedprox.config.parts import build_part, find_part
from fedprox.core.errors import ConfigError
from fedprox.solvers.adam import adam
from fedprox.solvers.closed_form import closed_form
from fedprox.solvers.gradient_descent import gradient_descent
from fedprox.solvers.lbfgs import lbfgs
from fedprox.solvers.newton_cg import newton_cg
from fedprox.solvers.optax_steps import from_optax
from fedprox.solvers.options import checked_options
from fedprox.solvers.python_callable import LocalView, opaque
from fedprox.solvers.sgd import sgd
from fedprox.solvers.solver import LocalProblem, Solver
from fedprox.solvers.stepwise import Stepwise, fullbatch_program, minibatch_program
from fedprox.solvers.svrg import svrg

__all__ = [
    "LocalProblem",
    "LocalView",
    "Solver",
    "Stepwise",
    "adam",
    "build",
    "closed_form",
    "from_optax",
    "fullbatch_program",
    "gradient_descent",
    "lbfgs",
    "minibatch_program",
    "newton_cg",
    "opaque",
    "sgd",
    "svrg",
]


def build(config: SolverConfig, seed: int = 0, run: Config | None = None) -> Solver:
    """Return the solver that the config names, with its keys and its `solver.options`; `run` is the complete config.

    >>> build(SolverConfig(name="lbfgs", options={"memory": 5})).name
    'lbfgs'
    """
    keys = part_keys("solvers", find_part("solvers", config.name, "solver.name"))
    options: dict[str, Any] = {}
    if "options" not in keys:  # otherwise it receives the table itself
        own = {name: key for name, key in keys.items() if name not in SolverConfig.model_fields}
        options = checked_options(config.name, config.options, own)
    solver: Solver = build_part("solvers", "solver.name", config, {"seed": seed, "config": run}, options)
    if not callable(getattr(solver, "solve", None)) or not isinstance(getattr(solver, "name", None), str):
        raise ConfigError(
            "`solver.name` must name a solver, which has `name` and `solve`, or a callable that returns one; "
            f"got {config.name!r}, which gives {type(solver).__name__}"
        )
    return solver
