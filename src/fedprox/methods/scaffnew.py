"""Scaffnew (Mishchenko, Malinovsky, Stich and Richtarik, "ProxSkip", 2022).

Devices take SGD steps with control variates v_k, all zero at the start, and communicate after each step with
probability p. So the number of steps between two exchanges is geometric, with mean 1 / p, and the same for all: one
number T for each round, drawn for (seed, round). From w^t each device takes T steps of

    w <- w - eta (g_k(w) - v_k)

which is the subproblem F_k(w) - <v_k, w>, to w_k. The server averages, and every device moves its variate:

    w^{t+1} = sum_k weight_k w_k,        v_k <- v_k + (p / eta) (w^{t+1} - w_k)

A device learns w^{t+1} with the next round's model, and moves v_k then. With all devices in every round this is the
source's method, where the sum of p_k v_k stays 0. With fewer, a device that is not in the next round never receives
w^{t+1}, and keeps its v_k; there is no theory for this case, and a warning says so.

Partial work is kept: a device whose budget is below T takes as many steps as it has. A device that fails keeps what it
remembers. Solvers other than SGD without momentum are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import jax
import numpy as np
from pydantic import Field

from fedprox.core.errors import ConfigError
from fedprox.core.randomness import Purpose, words
from fedprox.core.trees import Tree, difference, scale, total
from fedprox.methods.device_view import DeviceView
from fedprox.methods.method import Method, Reply
from fedprox.solvers import Solver

__all__ = ["Scaffnew", "shared_steps"]

Probability = Annotated[float, Field(ge=1e-9, le=1, allow_inf_nan=False, description="a number in (0, 1]")]


@dataclass(frozen=True)
class Scaffnew(Method):
    """Scaffnew: control variates, and a random number of local steps; partial work is kept.

    >>> Scaffnew(probability=1.0).probability
    1.0
    """

    name: str = field(default="scaffnew", init=False)
    wants_all_devices: bool = field(default=True, init=False)
    probability: Probability = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ConfigError(f"`method.probability` must be a number in (0, 1]; got {self.probability!r}")

    def check(self, solver: Solver) -> None:
        """Refuse solvers other than plain SGD."""
        momentum = getattr(solver, "momentum", 0.0)
        if not solver.is_sgd or momentum:
            got = f"momentum {momentum}" if solver.is_sgd else repr(solver.name)
            raise ConfigError(
                f"`solver.name` must be sgd without momentum with method.name = {self.name!r}, whose variates follow "
                f"from single steps; got {got}"
            )

    def start_device(self, params: Tree) -> Tree:
        """Return v_k, and the last w_k with its round."""
        return {"variate": jax.tree.map(np.zeros_like, params), "reached": params, "round": np.zeros((), np.int64)}

    def work(self, device: DeviceView) -> Reply:
        """Update the variate with the outcome of the last w_k, where it is known, and take the round's steps."""
        variate = device.state["variate"]
        if device.round == int(device.state["round"]) + 1:
            moved = difference(device.received, device.state["reached"])
            variate = total(variate, scale(moved, self.probability / device.learning_rate))
        steps = min(device.budget, shared_steps(self.probability, self.seed, device.round))
        found = device.solve(linear=scale(variate, -1.0), budget=steps).params
        return Reply(found, state={"variate": variate, "reached": found, "round": np.array(device.round)})


def shared_steps(probability: float, seed: int, round: int) -> int:
    """Return the number of local steps of a round: geometric, at least 1, the same for all devices and methods.

    >>> [shared_steps(0.1, seed=0, round=round) for round in (1, 2, 3)], shared_steps(1.0, seed=0, round=1)
    ([12, 6, 18], 1)
    """
    if probability == 1:
        return 1
    (word,) = words(1, seed, Purpose.SHARED_STEPS, round).tolist()
    left = 1 - (word >> 11) * 2.0**-53  # in (0, 1]
    return 1 + int(math.log(left) / math.log1p(-probability))
