"""PyTorch modules and optimisers, used unchanged.

    model, solver = from_torch(module, loss, torch.optim.SGD)
    fedprox.train(config, population=population, model=model, solver=solver)

A module becomes a model whose parameters are arrays by name, as in its `state_dict`; so `model.safetensors` of a run
loads back with `load_state_dict`. Its current parameters are the initial model w^0. Running statistics (of batch
normalisation) are among the arrays: they have no gradient, each device updates its own while it trains, and they are
merged with the model, or stay on the device where `personal.parameters` names them. Parameters without `requires_grad`
are frozen. Of a shared parameter the first name counts (load it with `strict=False`). Counters, other buffers and plain
attributes are neither sent nor kept: each local solve begins with the module's own.

Devices are solved, measured and differentiated by PyTorch directly. The proximal and the linear term are added to the
gradients in place, and mini-batches come in the order that every solver sees. Where a compiled program needs losses or
gradients (another solver, curvature), PyTorch is called back, with the module in evaluation mode: other solvers leave
dropout out, with a warning, and are refused for modules with batch normalisation.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedprox.adapters.torch_module import Loss, ModuleAt, ModuleCopies, Predict, largest
from fedprox.adapters.torch_solver import Optimiser, TorchSolver, Transform, build_solver
from fedprox.core.extras import needs_extra
from fedprox.core.trees import Tree
from fedprox.models import Model

with needs_extra("torch", "`fedprox.adapters.torch`"):
    import torch
    from torch import nn

__all__ = ["TorchSolver", "from_torch"]


def from_torch(
    module: nn.Module,
    loss: Loss | None = None,
    optimiser: Optimiser = torch.optim.SGD,
    *,
    predict: Predict | None = largest,
    transform: Transform | None = None,
    device: str = "cpu",
) -> tuple[Model, TorchSolver]:
    """Return a module as a model, and the solver that trains it with a PyTorch optimiser.

    Args:
      module: called on a batch of inputs. Images of bytes (uint8) come as numbers from 0 to 1.
      loss: `loss(outputs, y)`, one number per example; cross-entropy where none is given.
      optimiser: called as `optimiser(parameters, lr=learning_rate)` at the start of every local solve.
      predict: `predict(outputs)`, one label per example, by default the largest output; None for a regression.
      transform: applied to every training batch, for augmentation: `transform(x, generator)`, with a generator seeded
        for (seed, round, device); or `transform(x)`, which draws from the generators of PyTorch, `numpy.random` and
        `random`, seeded alike, while no other device trains.
      device: where PyTorch works, such as "cuda:0".

    >>> model, solver = from_torch(nn.Linear(2, 3), optimiser=torch.optim.Adam)
    >>> sorted(model.init(None)), solver.name
    (['bias', 'weight'], 'torch.Adam')
    """
    copies = ModuleCopies(module, loss or nn.CrossEntropyLoss(reduction="none"), predict, device)
    return _model(copies), build_solver(copies, optimiser, transform)


def _model(copies: ModuleCopies) -> Model:
    """Return the model, with functions for compiled programs that call PyTorch back."""

    def start(key: Any) -> Tree:
        state = copies.state(copies.module)
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    def host_losses(params: Tree, x: Any, y: Any) -> Any:
        with copies.at(params) as at:
            return at.losses(np.asarray(x), np.asarray(y))[0]

    def host_labels(params: Tree, x: Any) -> Any:
        with copies.at(params) as at:
            return at.predictions(np.asarray(x))

    def host_gradient(params: Tree, x: Any, y: Any, weights: Any) -> Tree:
        with copies.at(params) as at:
            return at.arrays(at.gradient(_weighted(at, x, y, weights)))

    def host_curvature(params: Tree, along: Tree, x: Any, y: Any, weights: Any) -> Tree:
        with copies.at(params) as at:
            gradient = at.gradient(_weighted(at, x, y, weights), create_graph=True)
            slope = sum((gradient[name] * at.tensor(along[name])).sum() for name in gradient)
            return at.arrays(at.gradient(slope))

    def _weighted(at: ModuleAt, x: Any, y: Any, weights: Any) -> torch.Tensor:
        return (at.each_loss(at.outputs(at.tensor(x)), at.tensor(y)) * at.tensor(weights)).sum()

    checked: set[Any] = set()

    def check_losses(x: jax.Array, y: jax.Array) -> None:
        """Refuse a loss that is a mean when it is traced: in the callback the error would be unclear."""
        kind = (x.shape[1:], y.shape[1:])
        if kind not in checked:
            host_losses(start(None), *(np.zeros((2, *each.shape[1:]), each.dtype) for each in (x, y)))
            checked.add(kind)

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        check_losses(x, y)
        return jax.pure_callback(host_losses, jax.ShapeDtypeStruct((len(x),), np.float32), params, x, y)

    def labels(params: Tree, x: jax.Array) -> jax.Array:
        return jax.pure_callback(host_labels, jax.ShapeDtypeStruct((len(x),), np.int32), params, x)

    @jax.custom_jvp
    def gradient(params: Tree, x: jax.Array, y: jax.Array, weights: jax.Array) -> Tree:
        return jax.pure_callback(host_gradient, _shapes(params), params, x, y, weights)

    @gradient.defjvp
    def _(at: Any, along: Any) -> Any:
        return gradient(*at), jax.pure_callback(host_curvature, _shapes(at[0]), at[0], along[0], *at[1:])

    name = type(copies.module).__name__
    trained = dict(copies.module.named_parameters())
    statistics = tuple(each for each in copies.state(copies.module) if each not in trained)
    labels_or_none = labels if copies.predict else None
    return Model(name, start, loss, labels_or_none, gradient, statistics=statistics, frozen=copies.frozen, host=copies)


def _shapes(params: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
