"""Models from Flax, both its APIs, used as they are: `from_linen` and `from_nnx`.

All of a module's parameters are trained; it is used as in evaluation, so without dropout. State that is not
parameters (batch statistics) is refused: devices with different data would not agree on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.adapters.outputs import Loss, Predict, build_output_model, cross_entropy, label
from fedprox.core.errors import ConfigError
from fedprox.core.extras import needs_extra
from fedprox.core.trees import Tree
from fedprox.models import Model

with needs_extra("flax", "`fedprox.adapters.flax`"):
    import flax.linen
    from flax import nnx

__all__ = ["from_linen", "from_nnx"]


def from_linen(
    module: flax.linen.Module, example: Any, *, loss: Loss = cross_entropy, predict: Predict | None = label
) -> Model:
    """Return a linen module as a model.

    Args:
      module: called as `module.apply({"params": params}, x)` on a batch.
      example: a batch of inputs, to shape the parameters for.
      loss: `loss(outputs, y)`, one number per example.
      predict: `predict(outputs)`, one label per example; None for a regression.

    >>> model = from_linen(flax.linen.Dense(3), jnp.zeros((1, 2)))
    >>> model.init(jax.random.key(0))["kernel"].shape
    (2, 3)
    """

    def init(key: jax.Array) -> Tree:
        variables = dict(module.init(key, jnp.asarray(example)))
        params = variables.pop("params", {})
        _refuse_other_state(type(module).__name__, variables)
        return params

    def outputs(params: Tree, x: jax.Array) -> Any:
        return module.apply({"params": params}, x)

    return build_output_model(type(module).__name__, init, outputs, loss, predict)


def from_nnx(
    make: Callable[[nnx.Rngs], nnx.Module], *, loss: Loss = cross_entropy, predict: Predict | None = label
) -> Model:
    """Return an NNX module as a model; `make(rngs)` creates it.

    >>> model = from_nnx(lambda rngs: nnx.Linear(2, 3, rngs=rngs))
    >>> model.init(jax.random.key(0))["kernel"].shape
    (2, 3)
    """
    module = make(nnx.Rngs(0))
    module.eval()
    parts: Any = nnx.split(module, nnx.Param, nnx.RngState, ...)
    graph, like, random, other = parts
    _refuse_other_state(type(module).__name__, nnx.to_pure_dict(other))

    def init(key: jax.Array) -> Tree:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def outputs(params: Tree, x: jax.Array) -> jax.Array:
        state = jax.tree.map(lambda leaf: leaf, like)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state, random)(x)

    return build_output_model(type(module).__name__, init, outputs, loss, predict)


def _refuse_other_state(name: str, state: dict[str, Any]) -> None:
    if state:
        raise ConfigError(f"module {name} must keep all its state in parameters; got {', '.join(map(str, state))} too")
