"""Stochastic gradient descent, the paper's local solver, with optional momentum and weight decay.

    v <- m v + g + d w,    w <- w - eta v            (Nesterov: w <- w - eta (g + d w + m v))

with g the gradient of h_k on a mini-batch, m the momentum and d the weight decay. m = d = 0 is the paper's
w <- w - eta g.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp

from fedprox.config.fields import BelowOne, Flag, NotNegative
from fedprox.core.trees import Tree
from fedprox.solvers.stepwise import Stepwise

__all__ = ["Sgd", "sgd"]


@dataclass(frozen=True)
class Sgd(Stepwise):
    """SGD, with the momentum that methods which count gradients need to know."""

    is_sgd: bool = True
    momentum: float = 0.0
    nesterov: bool = False


@lru_cache(maxsize=32)  # one object for one setting, so that compiled programs are found again
def sgd(momentum: BelowOne = 0.0, nesterov: Flag = False, weight_decay: NotNegative = 0.0) -> Sgd:
    """Return SGD; its momentum starts at zero in every local solve."""

    def init(params: Tree) -> Tree:
        return jax.tree.map(jnp.zeros_like, params) if momentum else ()

    def step(params: Tree, gradient: Tree, state: Tree, learning_rate: jax.Array) -> tuple[Tree, Tree]:
        if weight_decay:
            gradient = jax.tree.map(lambda g, w: g + weight_decay * w, gradient, params)
        direction = gradient
        if momentum:
            state = jax.tree.map(lambda v, g: momentum * v + g, state, gradient)
            direction = jax.tree.map(lambda g, v: g + momentum * v, gradient, state) if nesterov else state
        return jax.tree.map(lambda w, d: w - learning_rate * d, params, direction), state

    return Sgd("sgd", init, step, momentum=momentum, nesterov=nesterov)
