"""Local solvers: how a device works on its subproblem."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedprox.config import SolverConfig
from fedprox.core.errors import ConfigError, nearest
from fedprox.solvers.adam import adam
from fedprox.solvers.closed_form import closed_form
from fedprox.solvers.gradient_descent import gradient_descent
from fedprox.solvers.lbfgs import lbfgs
from fedprox.solvers.newton_cg import newton_cg
from fedprox.solvers.optax_steps import from_optax, named_optax
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

_BUILDERS: dict[str, Callable[..., Solver]] = {
    "adam": adam,
    "gradient_descent": gradient_descent,
    "lbfgs": lbfgs,
    "newton_cg": newton_cg,
    "closed_form": closed_form,
    "svrg": svrg,
}


def build(config: SolverConfig) -> Solver:
    """Return the solver that the config names, with its `solver.options`.

    >>> build(SolverConfig(name="lbfgs", options={"memory": 5})).name
    'lbfgs'
    """
    if config.name == "optax":
        return named_optax(config.options, config.learning_rate)
    if config.name == "sgd":
        _check_options(config.name, config.options, {})
        return sgd(config.momentum, config.nesterov, config.weight_decay)
    builder = _BUILDERS[config.name]
    defaults = {name: each.default for name, each in inspect.signature(builder).parameters.items()}
    _check_options(config.name, config.options, defaults)
    return builder(**config.options)


def _check_options(solver: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse an option that the solver does not have, or a value that cannot be one."""
    for name, value in options.items():
        if name not in defaults:
            rule = f"an option of {solver} ({', '.join(defaults) or 'it has none'})"
            raise ConfigError(f"`solver.options.{name}` must be {rule}{nearest(name, defaults)}; got {value!r}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"`solver.options.{name}` must be a number; got {value!r}")
        if isinstance(defaults[name], int) and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"`solver.options.{name}` must be a whole number >= 1; got {value!r}")
        if isinstance(defaults[name], float) and not 0 <= value < 1:  # Adam's beta1, beta2 and epsilon
            raise ConfigError(f"`solver.options.{name}` must be a number in [0, 1); got {value!r}")
