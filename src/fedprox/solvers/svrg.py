"""SVRG: mini-batch steps whose noise vanishes as they converge (Johnson and Zhang, 2013).

From a snapshot u with its exact gradient, a mini-batch B gives the estimate

    grad F_B(w) - grad F_B(u) + grad F_k(u)

of grad F_k(w); the proximal and the linear term are exact. A new snapshot is taken after every `epochs` epochs of such
steps. A snapshot costs ceil(n_k / b) steps of the budget and an inner step 2, since it takes two mini-batch gradients.
The mini-batches are those of the budget's orders, from the first on. With the entire local data set as the batch there
is no noise, and SVRG is gradient descent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.config.fields import Count
from fedprox.config.part_keys import part_keys
from fedprox.core.compilation import compiled
from fedprox.core.trees import Tree
from fedprox.models import Model
from fedprox.participation.budget import Piece
from fedprox.solvers.options import checked_options
from fedprox.solvers.sgd import sgd
from fedprox.solvers.solver import LocalProblem, span
from fedprox.solvers.stepwise import Stepwise, minibatch_program, steps_per_call
from fedprox.solvers.subproblem import Subproblem, add_terms, device_gradient

__all__ = ["named_svrg", "svrg"]


@lru_cache(maxsize=8)
def svrg(epochs: Count = 1) -> _SVRG:
    """Return SVRG with `epochs` epochs of inner steps for each snapshot."""
    return _SVRG(epochs)


def named_svrg(options: Mapping[str, Any]) -> _SVRG:
    """Return SVRG from `solver.options`, whose `epochs` are not those of `solver.epochs`."""
    return svrg(**checked_options("svrg", options, part_keys("solvers", svrg)))


@dataclass(frozen=True)
class _SVRG:
    epochs: int
    name: str = "svrg"
    is_sgd: bool = False
    stops_at_gamma_alone: ClassVar[bool] = True  # nothing else ends it before its budget

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Take snapshots and inner steps up to the budget, or until a snapshot is gamma-inexact."""
        if local.batch_size == 0:
            return sgd().solve(local)
        snapshot_of = _snapshot_program(local.model, local.loaded.block)
        program = minibatch_program(local.model, _INNER, local.batch_size)
        data = (local.problem, np.float32(local.learning_rate), local.loaded.x, local.loaded.y)
        params, taken, norm_at_start = local.start, 0, None
        batches = _inner_batches(local, self.epochs)
        if local.budget < local.steps_per_epoch:  # too little for a snapshot; an engine compiles this way
            nothing = span(local.begin, 0)
            gradient, _ = snapshot_of(params, local.problem, local.loaded.x, local.loaded.y, nothing)
            rows = np.zeros((steps_per_call(local.model, local.batch_size), local.batch_size), np.int32)
            program(params, (params, gradient), *data, span(local.begin, local.count, 0, 0), rows)
        while local.affords(taken + local.steps_per_epoch):
            place = span(local.begin, local.count)
            gradient, norm = snapshot_of(params, local.problem, local.loaded.x, local.loaded.y, place)
            taken += local.steps_per_epoch
            norm_at_start = float(norm) if norm_at_start is None else norm_at_start
            if float(norm) <= local.gamma * norm_at_start:
                break
            state = (params, gradient)
            for (rows, first, drawn), is_last in batches:
                steps = min(drawn, (local.budget - taken) // 2)
                params, state = program(params, state, *data, span(local.begin, local.count, first, steps), rows)
                taken += 2 * steps
                if is_last or taken + 2 > local.budget:
                    break
        return params, taken


def _inner_batches(local: LocalProblem, epochs: int) -> Iterator[tuple[Piece, bool]]:
    """Yield the pieces of the mini-batches, each with whether it ends the inner steps of a snapshot."""
    taken = 0
    for piece in local.minibatches(steps_per_call(local.model, local.batch_size), epochs_at_once=1):
        taken += piece.steps
        yield piece, taken % (epochs * local.steps_per_epoch) == 0


def _estimate(gradient: Callable[[Tree], Tree], params: Tree, state: Tree) -> Tree:
    snapshot, exact = state
    return jax.tree.map(lambda here, there, g: here - there + g, gradient(params), gradient(snapshot), exact)


_INNER = Stepwise("svrg", lambda params: (params, params), sgd().step, estimate=_estimate)


@lru_cache(maxsize=32)
def _snapshot_program(model: Model, block: int) -> Callable[..., Any]:
    """Return the compiled `program(params, problem, x, y, span) -> (grad F_k, ||grad h_k||)`; span = (begin, count)."""

    def program(
        params: Tree, problem: Subproblem, x: jax.Array, y: jax.Array, span: jax.Array
    ) -> tuple[Tree, jax.Array]:
        own = device_gradient(model, params, x, y, span[0], span[1], block)
        whole = add_terms(problem, params, own)
        return own, jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(whole)))

    return compiled(program, small=model.small)
