"""How many gradients a device's update amounts to, for methods that divide by it.

SGD on h_k moves by a fixed combination of its mini-batch gradients g_0, ..., g_{tau-1} of F_k + <c_k, .>:

    w^t - w_k = eta sum_s a_s g_s

The count is a = sum_s a_s: what the move would be, in units of eta g, if all gradients were the same g. Plain SGD has
a = tau. With a proximal term a = (1 - (1 - eta mu)^tau) / (eta mu), with momentum m it is
(tau - m (1 - m^tau) / (1 - m)) / (1 - m) (Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", 2020, Section 4). All of them, and both at once, are tau applications of one linear map. Weight
decay is part of the device's objective, like F_k itself, and changes no count.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedprox.core.errors import ConfigError
from fedprox.methods.device_view import Mu
from fedprox.solvers import Solver

__all__ = ["check_counts_gradients", "gradient_count"]


def check_counts_gradients(method: str, solver: Solver) -> None:
    """Refuse a solver whose update is not a fixed combination of gradients."""
    if not solver.is_sgd:
        raise ConfigError(
            f"`solver.name` must be sgd with method.name = {method!r}, which counts the gradients in a device's move; "
            f"got {solver.name!r}"
        )


def gradient_count(solver: Solver, steps: int, learning_rate: float, mu: Mu) -> float:
    """Return a = sum_s a_s after `steps` steps of SGD, with the `momentum` and `nesterov` that the solver declares.

    >>> from fedprox.solvers import sgd
    >>> gradient_count(sgd(), 3, learning_rate=0.1, mu=0.0)
    3.0
    >>> round(gradient_count(sgd(), 3, learning_rate=0.1, mu=5.0), 4)  # 1 + 1/2 + 1/4
    1.75
    >>> gradient_count(sgd(momentum=0.5), 3, learning_rate=0.1, mu=0.0)  # 1 + 3/2 + 7/4
    4.25
    """
    if isinstance(mu, Mapping):
        raise ConfigError(f"mu must be one number for all parameters where gradients are counted; got {dict(mu)}")
    momentum, nesterov = getattr(solver, "momentum", 0.0), getattr(solver, "nesterov", False)
    # With unit gradients and w^t - w = eta a: v <- m v + (1 - eta mu a), then a <- a + v; Nesterov adds the gradient
    # and m v instead of v.
    gradient = np.array([-learning_rate * mu, 0.0, 1.0])  # as a combination of (a, v, 1)
    velocity = np.array([0.0, momentum, 0.0]) + gradient
    direction = gradient + momentum * velocity if nesterov else velocity
    step = np.array([np.array([1.0, 0.0, 0.0]) + direction, velocity, [0.0, 0.0, 1.0]])
    return float(np.linalg.matrix_power(step, steps)[0, 2])
