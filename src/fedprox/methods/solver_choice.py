"""Which solver each device uses: one for all, or one for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedprox import solvers
from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.methods.method import Method
from fedprox.models import Model
from fedprox.solvers import Solver
from fedprox.solvers.solver import trains_by_itself

__all__ = ["SharedSolver", "SolverChoice", "choose_solver"]

SolverChoice = Solver | Mapping[int, Solver] | Callable[[int], Solver]
"""One solver for all devices, or one for each: a mapping from device or a function of it."""


@dataclass(frozen=True)
class SharedSolver:
    """One solver for all devices."""

    solver: Solver

    def __call__(self, device: int) -> Solver:
        """Return the solver of a device."""
        return self.solver


def choose_solver(
    config: Config, choice: SolverChoice | None, method: Method, model: Model | None = None
) -> Callable[[int], Solver]:
    """Return the solver of each device, checked against what the method can use and what can be stable.

    With a model, warn of dropout that the solver leaves out.
    """
    if isinstance(choice, Mapping):
        for one in choice.values():
            method.check(one)
        return lambda device: _entry(choice, device)
    if callable(choice):
        return _checked(choice, method)
    shared_solver = choice or solvers.build(config.solver, config.seed, config)
    method.check(shared_solver)
    largest_mu = method.subproblem_mu(config.method.mu) if isinstance(config.method.mu, float) else 0.0
    is_sgd = (config.solver.name == "sgd" and choice is None) or _is_plain_sgd(shared_solver)
    if is_sgd and config.solver.learning_rate * largest_mu >= 2:
        warnings.warn(
            f"SGD cannot be stable where `solver.learning_rate` times `method.{method.mu_key}` is 2 or more; "
            f"got {config.solver.learning_rate} * {largest_mu}",
            stacklevel=3,
        )
    if model is not None and getattr(model.host, "has_dropout", False) and not trains_by_itself(shared_solver):
        warnings.warn(
            f"solver {shared_solver.name!r} trains {model.name} without its dropout: use the solver that `from_torch` "
            "returns with the model",
            stacklevel=3,
        )
    return SharedSolver(shared_solver)


def _is_plain_sgd(solver: Solver) -> bool:
    """Return whether a solver of another library takes SGD's steps, without momentum, which has another bound."""
    return trains_by_itself(solver) and solver.is_sgd and not getattr(solver, "momentum", 0.0)


def _checked(choice: Callable[[int], Solver], method: Method) -> Callable[[int], Solver]:
    def checked(device: int) -> Solver:
        solver = choice(device)
        method.check(solver)
        return solver

    checked(0)  # before anything is written
    return checked


def _entry(choice: Mapping[int, Solver], device: int) -> Solver:
    try:
        return choice[device]
    except KeyError:
        raise ConfigError(f"`solver` must have an entry for every device; device {device} has none") from None
