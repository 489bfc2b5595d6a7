"""Adam (Kingma and Ba, 2015) on the subproblem.

    m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2
    w <- w - eta (m / (1 - beta1^s)) / (sqrt(v / (1 - beta2^s)) + epsilon)

with g the gradient of h_k on the mini-batch of step s = 1, 2, ... Its moments start at zero in every local solve.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp

from fedprox.config.fields import BelowOne
from fedprox.core.trees import Tree
from fedprox.solvers.stepwise import Stepwise

__all__ = ["adam"]


@lru_cache(maxsize=32)  # one object for one setting, so that compiled programs are found again
def adam(beta1: BelowOne = 0.9, beta2: BelowOne = 0.999, epsilon: BelowOne = 1e-8) -> Stepwise:
    """Return Adam."""

    def init(params: Tree) -> Tree:
        zero = jax.tree.map(jnp.zeros_like, params)
        return zero, zero, jnp.ones(2)  # m, v and (beta1^s, beta2^s)

    def step(params: Tree, gradient: Tree, state: Tree, learning_rate: jax.Array) -> tuple[Tree, Tree]:
        first, second, powers = state
        powers = powers * jnp.array([beta1, beta2])
        first = jax.tree.map(lambda m, g: m + (1 - beta1) * (g - m), first, gradient)
        second = jax.tree.map(lambda v, g: v + (1 - beta2) * (g * g - v), second, gradient)
        # The corrections of m and v as one factor of the step and one of epsilon: two numbers in place of two arrays.
        root = jnp.sqrt(1 - powers[1])
        length, floor = learning_rate * root / (1 - powers[0]), epsilon * root
        params = jax.tree.map(lambda w, m, v: w - length * m / (jnp.sqrt(v) + floor), params, first, second)
        return params, (first, second, powers)

    return Stepwise("adam", init, step)
