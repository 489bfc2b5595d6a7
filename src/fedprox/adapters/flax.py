"""Models from Flax, used unchanged, for both of its APIs: `from_linen` and `from_nnx`.

All of a module's parameters are trained; dropout is left out. Batch statistics (`BatchNorm`) are `Model.statistics`:
collected in training from the mini-batches of each device and used as they are otherwise; averaged with the rest of
the model, or personal. Other state is refused: devices with different data would not agree on it.

A short mini-batch is padded with rows that do not count. Batch normalisation excludes them by its `mask`, which the
adapters pass to every `BatchNorm` of a module.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.adapters.outputs import Loss, Predict, build_output_model, cross_entropy, label
from fedprox.core.errors import ConfigError, short
from fedprox.core.extras import needs_extra
from fedprox.core.own_code import own_code
from fedprox.core.trees import Tree, flatten_names
from fedprox.models import Model

with needs_extra("flax", "`fedprox.adapters.flax`"):
    import flax.linen
    from flax import nnx

__all__ = ["from_linen", "from_nnx"]

_STATISTICS = "batch_stats"  # Flax's name for the collection
_MODE = {"train": True, "training": True, "is_training": True, "deterministic": False, "use_running_average": False}
"""Arguments of a module's call that distinguish training from evaluation -> their values in training."""


def from_linen(
    module: flax.linen.Module, example: Any, *, loss: Loss = cross_entropy, predict: Predict | None = label
) -> Model:
    """Return a linen module as a model.

    Args:
      module: called as `module.apply({"params": params}, x)` on a batch. Where the call has an argument `train`,
        `training`, `is_training`, `deterministic` or `use_running_average`, it is passed.
      example: a batch of inputs, to shape the parameters for.
      loss: `loss(outputs, y)`, one number per example.
      predict: `predict(outputs)`, one label per example; None for a regression.

    With batch statistics the tree has the branches `params` and `batch_stats`, as Flax's variables.

    >>> model = from_linen(flax.linen.Dense(3), jnp.zeros((1, 2)))
    >>> model.init(jax.random.key(0))["kernel"].shape
    (2, 3)
    """
    _check_linen(module, example)
    name = type(module).__name__

    def variables(key: jax.Array) -> dict[str, Any]:
        with _linen_calls(training=False):
            found = dict(module.init(key, jnp.asarray(example), **_mode(module, training=False)))
        _refuse_other_state(name, {kind: each for kind, each in found.items() if kind not in ("params", _STATISTICS)})
        return found

    shape, dtype = tuple(example.shape), example.dtype
    with own_code(f"module {name}, called with the example of {dtype} {shape},", ConfigError):
        has_statistics = _STATISTICS in jax.eval_shape(variables, jax.random.key(0))

    def init(key: jax.Array) -> Tree:
        found = variables(key)
        return found if has_statistics else found.get("params", {})

    def outputs(params: Tree, x: jax.Array) -> Any:
        with _linen_calls(training=False):
            return module.apply(params if has_statistics else {"params": params}, x, **_mode(module, training=False))

    def training(params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> tuple[jax.Array, Tree]:
        with _linen_calls(training=True), _masked(weights > 0):
            found, fresh = module.apply(params, x, **_mode(module, training=True), mutable=[_STATISTICS])
        return loss(found, y), {**params, **fresh}

    model = build_output_model(name, init, outputs, loss, predict)
    return _with_statistics(model, (_STATISTICS,), training) if has_statistics else model


def from_nnx(
    make: Callable[[nnx.Rngs], nnx.Module], *, loss: Loss = cross_entropy, predict: Predict | None = label
) -> Model:
    """Return an NNX module as a model; `make(rngs)` creates it. Batch statistics stand beside the parameters.

    >>> model = from_nnx(lambda rngs: nnx.Linear(2, 3, rngs=rngs))
    >>> model.init(jax.random.key(0))["kernel"].shape
    (2, 3)
    """
    if isinstance(make, nnx.Module) or not callable(make):
        raise ConfigError(
            f"`make` must be a function of `rngs` that returns a module of NNX; got {_kind(make)}: give its class, or "
            "lambda rngs: ..."
        )

    def made(rngs: nnx.Rngs) -> nnx.Module:
        with own_code("`make`, called with `rngs`,", ConfigError):
            module = make(rngs)
        if not isinstance(module, nnx.Module):
            raise ConfigError(f"`make` must return a module of NNX; got {_kind(module)}")
        for _, node in nnx.iter_graph(module):
            if type(node) is nnx.BatchNorm:
                node.__class__ = _MaskedBatchNorm
        module.eval()
        return module

    module = made(nnx.Rngs(0))
    name = type(module).__name__
    kept = (nnx.Param, nnx.BatchStat)
    parts: Any = nnx.split(module, kept, nnx.RngState, ...)
    graph, like, random, other = parts
    _refuse_other_state(name, nnx.to_pure_dict(other))
    statistics = tuple(flatten_names(nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))))

    def init(key: jax.Array) -> Tree:
        return nnx.to_pure_dict(nnx.state(made(nnx.Rngs(key)), kept))

    def merged(params: Tree) -> Any:
        state = jax.tree.map(lambda leaf: leaf, like)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state, random, copy=True)  # a compiled program cannot change the module's own counters

    def outputs(params: Tree, x: jax.Array) -> jax.Array:
        return merged(params)(x)

    def training(params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> tuple[jax.Array, Tree]:
        own = merged(params)
        own.set_attributes(use_running_average=False, raise_if_not_found=False)
        with _masked(weights > 0):
            losses = loss(own(x), y)
        return losses, nnx.to_pure_dict(nnx.state(own, kept))

    model = build_output_model(name, init, outputs, loss, predict)
    return _with_statistics(model, statistics, training) if statistics else model


def _with_statistics(model: Model, statistics: tuple[str, ...], training: Callable[..., Any]) -> Model:
    return dataclasses.replace(model, statistics=statistics, training=training)


def _mode(module: flax.linen.Module, *, training: bool) -> dict[str, Any]:
    """Return the argument that tells a module whether it is trained, where its call has one."""
    known = inspect.signature(type(module).__call__).parameters
    return {name: is_on == training for name, is_on in _MODE.items() if name in known}


@contextmanager
def _linen_calls(*, training: bool) -> Iterator[None]:
    """Disable dropout; tell each `BatchNorm` which rows count and, if nothing else does, whether it is trained."""

    def intercept(call: Callable[..., Any], args: Any, kwargs: dict[str, Any], context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        if isinstance(context.module, flax.linen.Dropout):
            return args[0]
        if isinstance(context.module, flax.linen.BatchNorm):
            if context.module.use_running_average is None and len(args) == 1:
                kwargs = {"use_running_average": not training, **kwargs}
            if training and "mask" not in kwargs:
                kwargs = {**kwargs, "mask": _mask_for(args[0])}
        return call(*args, **kwargs)

    with flax.linen.intercept_methods(intercept):
        yield


class _MaskedBatchNorm(nnx.BatchNorm):
    """A `BatchNorm` that knows which rows of a mini-batch count."""

    def __call__(self, x: jax.Array, use_running_average: bool | None = None, *, mask: Any = None) -> jax.Array:
        told = _mask_for(x) if mask is None else mask
        return super().__call__(x, use_running_average, mask=told)


_rows: ContextVar[Any] = ContextVar("rows", default=None)


@contextmanager
def _masked(rows: jax.Array) -> Iterator[None]:
    """Let `BatchNorm` count only some rows of a mini-batch."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def _mask_for(x: jax.Array) -> jax.Array | None:
    rows = _rows.get()
    if rows is None:
        return None
    if x.shape[:1] != rows.shape:
        raise ConfigError(
            f"a BatchNorm must get the examples of a mini-batch along the first axis; got shape {x.shape} for "
            f"{len(rows)} examples"
        )
    return jnp.broadcast_to(rows.reshape(-1, *[1] * (x.ndim - 1)), x.shape)


def _check_linen(module: Any, example: Any) -> None:
    if not isinstance(module, flax.linen.Module):
        hint = ": use `from_nnx`" if isinstance(module, nnx.Module) else ""
        raise ConfigError(f"`module` must be a module of Linen, not a class; got {_kind(module)}{hint}")
    if not hasattr(example, "shape") or not example.shape:
        raise ConfigError(f"`example` must be an array, a batch of inputs such as x[:1]; got {short(example)}")


def _kind(given: object) -> str:
    """Return what an object of a wrong kind is.

    >>> _kind(nnx.Rngs(0)), _kind(nnx.Linear)
    ('Rngs', 'the class Linear')
    """
    return f"the class {given.__qualname__}" if inspect.isclass(given) else type(given).__name__


def _refuse_other_state(name: str, state: dict[str, Any]) -> None:
    if state:
        raise ConfigError(
            f"module {name} must keep all its state in parameters; it also has {', '.join(map(str, state))}"
        )
