"""Any optax gradient transformation as a local solver.

A transformation turns the gradient g of h_k on a mini-batch, and its own state, into the change of w. The state (and so
a schedule of the learning rate) is reset in every local solve. The learning rate is the transformation's.

    solver = from_optax(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))

From a config: name = "optax" with options = { name = "rmsprop", decay = 0.95 }, any of optax's optimisers and its
arguments; the learning rate is `solver.learning_rate`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedprox.core.errors import ConfigError, nearest, short
from fedprox.core.extras import needs_extra
from fedprox.core.trees import Tree
from fedprox.solvers.stepwise import Stepwise

if TYPE_CHECKING:
    import optax

__all__ = ["from_optax", "named_optax"]


@lru_cache(maxsize=32)
def from_optax(transformation: optax.GradientTransformation, name: str = "optax") -> Stepwise:
    """Return a solver that steps as the transformation says.

    >>> import optax
    >>> from_optax(optax.adam(1e-3)).name
    'optax'
    """
    if not callable(getattr(transformation, "init", None)) or not callable(getattr(transformation, "update", None)):
        raise ConfigError(
            f"`transformation` must be an optax transformation, such as optax.adam(0.001); got {short(transformation)}"
        )

    def step(params: Tree, gradient: Tree, state: Tree, learning_rate: jax.Array) -> tuple[Tree, Tree]:
        updates, state = transformation.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    return Stepwise(name, transformation.init, step)


def named_optax(options: Mapping[str, Any], learning_rate: float) -> Stepwise:
    """Return one of optax's optimisers by name, with its arguments."""
    if "learning_rate" in options:
        raise ConfigError(
            "`solver.options.learning_rate` must be left out, since it is `solver.learning_rate`; "
            f"got {options['learning_rate']!r}"
        )
    arguments = {"learning_rate": learning_rate, **options}
    name = arguments.pop("name", None)
    return _named(name, tuple(sorted((key, _hashable(value)) for key, value in arguments.items())))


@lru_cache(maxsize=32)
def _named(name: Any, arguments: tuple[tuple[str, Any], ...]) -> Stepwise:
    with needs_extra("optax", "`solver.name` = 'optax'"):
        import optax
    known = [each for each in dir(optax) if _is_optimiser(getattr(optax, each))]
    if name not in known:
        hint = nearest(str(name), known)
        raise ConfigError(f"`solver.options.name` must be one of optax's optimisers{hint}; got {name!r}")
    try:
        transformation = getattr(optax, name)(**dict(arguments))
        state = transformation.init(jnp.zeros(1))
        jax.eval_shape(transformation.update, jnp.zeros(1), state, jnp.zeros(1))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`solver.options` must be what optax.{name} takes: {error}; got {dict(arguments)}") from None
    return from_optax(transformation, f"optax.{name}")


def _is_optimiser(thing: Any) -> bool:
    return inspect.isfunction(thing) and "learning_rate" in inspect.signature(thing).parameters


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
