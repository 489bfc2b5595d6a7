"""A model's functions are tried at the start on shapes alone, without computing anything but a regression's losses.

The loss must be one number per example. A mean over a batch would be broadcast against the weights of its examples
without an error, so that short batches, entire devices and evaluations would all be weighted wrongly. Likewise
predictions of another shape would be compared with all labels at once.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.core.errors import ConfigError
from fedprox.core.name_patterns import matches_any
from fedprox.core.own_code import own_code
from fedprox.core.trees import Tree, flatten_names, to_numpy
from fedprox.models.model import Model
from fedprox.models.separate_examples import warn_of_mixed_examples

__all__ = ["check_fits", "check_functions", "checked_params"]

_ROWS = 2  # a single row could not distinguish a mean from a loss per example


def checked_params(model: Model, key: jax.Array) -> Tree:
    """Return the parameters that `init` gives; refuse what gradients cannot change."""
    with own_code(f"init of model {model.name!r}, called with a key,", ConfigError):
        params = to_numpy(model.init(key))
    named = flatten_names(params)
    if not named:
        raise ConfigError(f"init of model {model.name!r} must return a tree of arrays; got no array")
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(params)]
    if len(names) > len(named):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(
            f"the parameters of model {model.name!r} must have different names, which are their keys joined by "
            f"dots; got two called {twice!r}"
        )
    for name, leaf in named.items():
        is_trained = not matches_any(name, model.frozen + model.statistics)
        if leaf.dtype not in (np.float32, np.float64) and (is_trained or leaf.dtype.kind not in "biuf"):
            raise ConfigError(
                f"the parameters of model {model.name!r} must be arrays of float32; {name!r} has {leaf.dtype}"
            )
    return params


def check_fits(model: Model, shape: tuple[int, ...], classes: int) -> None:
    """Refuse data that the model's functions would take without an error: examples of `shape`, labels of `classes`."""
    if model.features and math.prod(shape) != model.features:
        raise ConfigError(
            f"the examples must have {model.features} numbers each for the model {model.name!r}; they have the shape "
            f"{shape}"
        )
    if model.classes and classes > model.classes:
        raise ConfigError(
            f"the labels must be below {model.classes}, the number of classes of the model {model.name!r}; the data "
            f"have {classes} classes"
        )


def check_functions(model: Model, params: Tree, x: np.ndarray, y: np.ndarray) -> None:
    """Refuse a model whose loss or predictions on a batch of x and y are not one per example."""
    batch = [jax.ShapeDtypeStruct((_ROWS, *array.shape[1:]), array.dtype) for array in (x, y)]
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), params)
    try:
        loss = _results("the loss", model, model.loss, shapes, *batch)
    except ConfigError as error:
        if model.predict is None or y.dtype.kind != "f":
            raise
        raise ConfigError(f"{error}; y has real numbers: give class labels as integers or text") from error.__cause__
    if len(loss) != 1 or loss[0].shape != (_ROWS,):
        raise ConfigError(
            f"the loss of model {model.name!r} must be one number per example, of shape (examples,), not a mean; "
            f"for {_ROWS} examples it has shape {_shapes(loss)}"
        )
    if not jnp.issubdtype(loss[0].dtype, jnp.floating):
        raise ConfigError(
            f"the loss of model {model.name!r} must be floating-point numbers, which have gradients; it has "
            f"{loss[0].dtype}"
        )
    if model.predict is None:
        warn_of_mixed_examples(model, params, x, y)
        return
    labels = _results("predict", model, model.predict, shapes, batch[0])
    if len(labels) != 1 or labels[0].shape != (_ROWS,) or labels[0].dtype.kind not in "biu":
        kind = f" of {labels[0].dtype}" if len(labels) == 1 else ""
        raise ConfigError(
            f"predict of model {model.name!r} must be one label per example, integers of shape (examples,), such as "
            f"jnp.argmax(scores, axis=1), or None for a regression; for {_ROWS} examples it has shape "
            f"{_shapes(labels)}{kind}"
        )


def _results(what: str, model: Model, function: Any, params: Tree, *batch: jax.ShapeDtypeStruct) -> list[Any]:
    """Return the shapes of what a function returns for a batch."""
    part = f"{what} of model {model.name!r}, called with params, " + " and ".join(
        f"{name} of {each.dtype} {each.shape}" for name, each in zip("xy", batch, strict=False)
    )
    try:
        with own_code(part + ",", ConfigError):
            return jax.tree.leaves(jax.eval_shape(function, params, *batch))
    except ConfigError as error:
        if isinstance(error.__cause__, _TRACED):
            raise ConfigError(
                f"{what} of model {model.name!r} must be written with jax.numpy: it is compiled, so numpy, float() and "
                f"if cannot be used on params, x and y ({type(error.__cause__).__name__})"
            ) from error.__cause__
        raise


def _shapes(results: list[Any]) -> str:
    return ", ".join(str(each.shape) for each in results) or "nothing"


_TRACED = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)
