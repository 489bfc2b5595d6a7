"""Models from Equinox, used unchanged.

The arrays of real numbers in a module are its parameters, everything else is fixed. A module works on one example; it
is mapped over batches, in inference mode, so without dropout. Modules with state (`eqx.nn.BatchNorm`) are refused:
their statistics are means over the mapped axis, where rows that pad a short mini-batch cannot be left out.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from fedprox.adapters.outputs import Loss, Predict, build_output_model, cross_entropy, label
from fedprox.core.errors import ConfigError
from fedprox.core.extras import needs_extra
from fedprox.core.own_code import own_code
from fedprox.core.trees import Tree
from fedprox.models import Model

with needs_extra("equinox", "`fedprox.adapters.equinox`"):
    import equinox as eqx

__all__ = ["from_equinox"]


def from_equinox(
    make: Callable[[jax.Array], eqx.Module], *, loss: Loss = cross_entropy, predict: Predict | None = label
) -> Model:
    """Return an Equinox module as a model.

    Args:
      make: `make(key)` creates the module.
      loss: `loss(outputs, y)`, one number per example.
      predict: `predict(outputs)`, one label per example; None for a regression.

    >>> model = from_equinox(lambda key: eqx.nn.Linear(2, 3, key=key))
    >>> model.init(jax.random.key(0)).weight.shape
    (3, 2)
    """
    if isinstance(make, eqx.Module) or not callable(make):
        raise ConfigError(
            f"`make` must be a function of a key that returns a module of Equinox; got {type(make).__name__}: give its "
            "class, or lambda key: ..."
        )
    with own_code("`make`, called with a key,", ConfigError):
        module = make(jax.random.key(0))
    if not isinstance(module, eqx.Module):
        raise ConfigError(f"`make` must return a module of Equinox; got {type(module).__name__}")
    module = eqx.nn.inference_mode(module)
    leaves = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.StateIndex))
    if any(isinstance(leaf, eqx.nn.StateIndex) for leaf in leaves):
        raise ConfigError(
            f"module {type(module).__name__} must keep all its state in parameters; got state of Equinox "
            "(`eqx.nn.State`), such as that of BatchNorm"
        )
    _, fixed = eqx.partition(module, eqx.is_inexact_array)

    def init(key: jax.Array) -> Tree:
        return eqx.filter(eqx.nn.inference_mode(make(key)), eqx.is_inexact_array)

    def outputs(params: Tree, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(params, fixed))(x)

    return build_output_model(type(module).__name__, init, outputs, loss, predict)
