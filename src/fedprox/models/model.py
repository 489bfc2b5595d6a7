"""What a model is: pure functions of its parameters.

The loss is given per example, so that one definition serves mini-batches, entire devices and weighted means. A model
may define its own gradient where that is faster than automatic differentiation; it must be the gradient of the same
loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import ConfigError, short
from fedprox.core.name_patterns import matches_any
from fedprox.core.trees import Tree, map_names
from fedprox.models.host_model import HostModel

__all__ = [
    "Array",
    "Model",
    "WideForm",
    "checked_model",
    "classifier",
    "evaluate",
    "evaluate_and_differentiate",
    "hint_at_adapter",
    "mean_gradient",
    "second_moment",
]

Array = NDArray[Any]


class WideForm(NamedTuple):
    """A model of flat inputs with columns of zeros, in which its loops take less time.

    Its functions then take wide rows and wide parameters as well as others, and the gradient at wide parameters is
    wide, with zeros in the columns added.
    """

    columns: int  # of a wide row of x
    widen: Callable[[Tree], Tree]  # parameters, or a tree of their shapes
    narrow: Callable[[Tree], Tree]  # the inverse


@dataclass(frozen=True)
class Model:
    """A model as pure functions; `params` is any pytree of arrays.

    Attributes:
      name: its name in configs and records.
      init: `init(key) -> params` from a JAX random key.
      loss: `loss(params, x, y) -> losses`, one per example.
      predict: `predict(params, x) -> labels`, one per example; compared with `y` for accuracy. None for a regression,
        which has no accuracy.
      gradient: optionally `gradient(params, x, y, weights)`, the gradient of `sum(weights * loss)`.
      small: whether its products of two matrices are so small that a complete loop over mini-batches is best compiled
        into one kernel (`fedprox.core.kernels.one_kernel`). Its gradient must then depend on x and y.
      curvature_bound: only for a loss that is convex in the parameters, and only where one is known:
        `curvature_bound(x)`, a number that no eigenvalue of the Hessian of the mean loss over the examples x exceeds,
        whatever the parameters and labels.
      host: for a model that computes outside compiled programs, how devices are measured and differentiated there.
      statistics: patterns over the names of parameters that are collected in training instead of trained by gradients,
        such as the running means of batch normalisation (`fedprox.core.name_patterns`).
      training: for a model with statistics, `training(params, x, y, weights) -> (losses, params)`: the losses of a
        mini-batch as they are in training, and the parameters with new statistics, which is all that is taken from
        them. weights are 1 / (size of the mini-batch), and 0 for rows that pad a short one. `loss` and
        `predict` use the statistics as they are.
      frozen: patterns over the names of parameters that are never trained (`[personal] frozen`).
      losses_and_labels: optionally `losses_and_labels(params, x, y)`, what `loss` and `predict` return, with the
        outputs of the network computed once: measuring then takes one forward pass.
      wide: for a small model, the form in which its rows fill whole lines of the cache; None where they do.
      features, classes: for a model whose functions take other examples and labels without an error, the numbers of an
        example and of the classes; 0: they notice.
    """

    name: str
    init: Callable[[jax.Array], Tree]
    loss: Callable[[Tree, Any, Any], jax.Array]
    predict: Callable[[Tree, Any], jax.Array] | None
    gradient: Callable[[Tree, Any, Any, jax.Array], Tree] | None = None
    small: bool = False
    curvature_bound: Callable[[Array], float] | None = None
    host: HostModel | None = None
    statistics: tuple[str, ...] = ()
    training: Callable[[Tree, Any, Any, jax.Array], tuple[jax.Array, Tree]] | None = None
    frozen: tuple[str, ...] = ()
    losses_and_labels: Callable[[Tree, Any, Any], tuple[jax.Array, jax.Array]] | None = None
    wide: WideForm | None = None
    features: int = 0
    classes: int = 0

    def only_trained(self, gradient: Tree) -> Tree:
        """Return a gradient with zeros for the parameters that gradients do not move."""
        fixed = self.frozen + self.statistics
        if not fixed:
            return gradient
        return map_names(lambda name, leaf: jnp.zeros_like(leaf) if matches_any(name, fixed) else leaf, gradient)


def checked_model(model: Any) -> Model:
    """Return a model; refuse what is not a `Model`, and name the function that converts it."""
    if isinstance(model, Model):
        for name in ("init", "loss", "predict"):
            function = getattr(model, name)
            if not callable(function) and not (name == "predict" and function is None):
                raise ConfigError(f"`{name}` of a model must be a function; got {short(function)}")
        return model
    if model is Model or isinstance(model, str) or inspect.isroutine(model):
        raise ConfigError(f"`model` must be a fedprox.Model; got {short(model)}{_hint(model)}")
    if isinstance(model, tuple) and model and isinstance(model[0], Model):
        raise ConfigError(
            "`model` must be a fedprox.Model; got a tuple with one, so take it apart, as `model, solver = "
            "from_torch(module)` does"
        )
    if inspect.isclass(model):
        raise ConfigError(f"`model` must be a fedprox.Model; got the class {model.__qualname__}, not an object of it")
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    if function := _adapter(model):
        raise ConfigError(f"`model` must be a fedprox.Model; got the module {name}, make one of it with {function}")
    raise ConfigError(f"`model` must be a fedprox.Model; got {name}")


def hint_at_adapter(given: Any) -> str:
    """Return what to do about a module of another library, or about all that `from_torch` returns, in place of a model.

    >>> hint_at_adapter(3)
    ''
    """
    if isinstance(given, tuple) and given and isinstance(given[0], Model):
        return ": `model, solver = from_torch(module)` gives each a name, for `model.name` and `solver.name`"
    function = _adapter(given)
    return f": make one of it with {function}" if function else ""


def _adapter(given: Any) -> str:
    """Return the call that makes a model of a module of another library, or nothing."""
    bases = {base.__module__.partition(".")[0] for base in type(given).__mro__}
    return next((function for library, function in _ADAPTERS.items() if library in bases), "")


def _hint(model: Any) -> str:
    """Return what to do about a name or a function in place of a model."""
    if isinstance(model, str):
        return f": name a built-in one in the config, {{'model': {{'name': {model!r}}}}}"
    return ": call it" if inspect.isroutine(model) else ": make one, Model(name, init, loss, predict)"


_ADAPTERS = {
    "torch": "`model, solver = fedprox.adapters.torch.from_torch(module)`",
    "flax": "`fedprox.adapters.flax.from_linen` or `from_nnx`",
    "equinox": "`fedprox.adapters.equinox.from_equinox`",
}


def mean_gradient(model: Model, params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> Tree:
    """Return the gradient of sum_i weights_i * loss_i over a batch."""
    if model.gradient is not None:
        return model.only_trained(model.gradient(params, x, y, weights))

    def objective(params: Tree) -> jax.Array:
        return jnp.sum(weights * model.loss(params, x, y))

    return model.only_trained(jax.grad(objective)(params))


def evaluate(model: Model, params: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Return the losses of a batch and its predicted labels, None for a model that predicts none."""
    if model.losses_and_labels is not None:
        return model.losses_and_labels(params, x, y)
    return model.loss(params, x, y), None if model.predict is None else model.predict(params, x)


def evaluate_and_differentiate(
    model: Model, params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array | None, Tree]:
    """Return losses and labels as `evaluate` does, and the gradient of sum_i weights_i * loss_i.

    A model with `losses_and_labels` and no gradient of its own takes one forward and one backward pass for all three.
    """
    together = model.losses_and_labels
    if together is None or model.gradient is not None:
        return *evaluate(model, params, x, y), mean_gradient(model, params, x, y, weights)

    def objective(params: Tree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        losses, labels = together(params, x, y)
        return jnp.sum(weights * losses), (losses, labels)

    gradient, (losses, labels) = jax.grad(objective, has_aux=True)(params)
    return losses, labels, model.only_trained(gradient)


def classifier(name: str, init: Callable[[jax.Array], Tree], scores: Callable[[Tree, jax.Array], jax.Array]) -> Model:
    """Return the model with the cross-entropy of softmax(scores) as its loss, for `scores` (examples, classes)."""

    def losses_and_labels(params: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = scores(params, x)
        losses = jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, y[:, None], axis=1)[:, 0]
        return losses, jnp.argmax(z, axis=1)

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return losses_and_labels(params, x, y)[0]

    def predict(params: Tree, x: jax.Array) -> jax.Array:
        return jnp.argmax(scores(params, x), axis=1)

    return Model(name, init, loss, predict, losses_and_labels=losses_and_labels)


def second_moment(x: Array) -> float:
    """Return the largest eigenvalue of X^T X / n for the rows of a matrix.

    >>> second_moment(np.array([[2.0, 0.0], [0.0, 1.0]]))
    2.0
    """
    x = x.astype(np.float64)
    gram = x.T @ x if x.shape[1] <= len(x) else x @ x.T  # both have the same largest eigenvalue
    return float(np.linalg.eigvalsh(gram)[-1]) / len(x)
