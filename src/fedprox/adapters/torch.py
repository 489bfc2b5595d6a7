"""PyTorch modules and optimisers, used as they are.

    model, solver = from_torch(module, loss, torch.optim.SGD)
    fedprox.train(config, population=population, model=model, solver=solver)

A module becomes a model whose parameters are arrays by name, as in its `state_dict`; so `model.safetensors` of a run
loads back with `load_state_dict`. Its present parameters are the initial model w^0. Losses, predictions and gradients
are computed by PyTorch wherever a compiled program of ours asks for them, so that all measures, methods and solvers
work with it. The solver that comes with it keeps the local loop in PyTorch as well: the proximal and the linear term
are added to the gradients in place, and mini-batches come in the order that every solver sees.

PyTorch works on one core for each device, as everything here, so that results do not depend on how many there are.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedprox.core.errors import ConfigError
from fedprox.core.extras import needs_extra
from fedprox.core.trees import Tree, to_numpy
from fedprox.models import Model
from fedprox.solvers.python_callable import solver_key
from fedprox.solvers.solver import LocalProblem
from fedprox.solvers.stepwise import Target
from fedprox.solvers.subproblem import Subproblem, mu_per_leaf

with needs_extra("torch", "`fedprox.adapters.torch`"):
    import torch
    from torch import nn

__all__ = ["TorchSolver", "from_torch"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Optimiser = Callable[..., torch.optim.Optimizer]
_RANDOM = threading.Lock()  # PyTorch's generator is one for the whole process


def from_torch(
    module: nn.Module,
    loss: Loss | None = None,
    optimiser: Optimiser = torch.optim.SGD,
    *,
    predict: Callable[[torch.Tensor], torch.Tensor] | None = lambda outputs: outputs.argmax(1),
) -> tuple[Model, TorchSolver]:
    """Return a module as a model, and the solver that trains it with a PyTorch optimiser.

    Args:
      module: called on a batch of inputs. Layers with running statistics (batch normalisation) are refused.
      loss: `loss(outputs, y)`, one number per example; cross-entropy where none is given.
      optimiser: called as `optimiser(parameters, lr=learning_rate)` at the start of every local solve.
      predict: `predict(outputs)`, one label per example; None for a regression.

    >>> model, solver = from_torch(nn.Linear(2, 3), optimiser=torch.optim.Adam)
    >>> sorted(model.init(None)), solver.name
    (['bias', 'weight'], 'torch.Adam')
    """
    for name, layer in module.named_modules():
        if getattr(layer, "running_mean", None) is not None:
            raise ConfigError(f"a module must keep all its state in parameters; layer {name!r} has running statistics")
    copies = _Copies(module)
    losses = loss or nn.CrossEntropyLoss(reduction="none")
    kind = getattr(optimiser, "func", optimiser)  # of a functools.partial
    solver = TorchSolver(f"torch.{kind.__name__}", copies, losses, optimiser)
    return _model(copies, losses, predict), _with_sgd_settings(solver)


def _with_sgd_settings(solver: TorchSolver) -> TorchSolver:
    """Declare the momentum of PyTorch's SGD, with which methods can count gradients; dampening would change the count.

    PyTorch's steps are those of `fedprox.solvers.sgd`: v <- m v + g and w <- w - eta v, or g + m v with Nesterov.
    """
    rate = 0.25
    made = solver.optimiser([torch.zeros(1, requires_grad=True)], lr=rate)
    if type(made) is not torch.optim.SGD:
        return solver
    if made.defaults["dampening"]:
        return replace(solver, name=f"{solver.name} with dampening")
    if made.defaults["maximize"] or made.defaults["lr"] != rate:
        return solver
    momentum, nesterov = float(made.defaults["momentum"]), bool(made.defaults["nesterov"])
    return replace(solver, is_sgd=True, momentum=momentum, nesterov=nesterov)


class _Copies:
    """Copies of a module, one for each thread that is at work."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.is_random = any(isinstance(each, nn.modules.dropout._DropoutNd) for each in module.modules())
        self._free: list[nn.Module] = []

    @contextmanager
    def at(self, params: Tree, *, training: bool) -> Iterator[nn.Module]:
        """Lend a copy with the given parameters."""
        try:
            module = self._free.pop()
        except IndexError:
            module = copy.deepcopy(self.module)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(torch.from_numpy(np.array(params[name])))
            yield module.train(training)
        finally:
            torch.set_num_threads(threads)
            self._free.append(module)


def _model(copies: _Copies, losses: Loss, predict: Callable[[torch.Tensor], torch.Tensor] | None) -> Model:
    def start(key: Any) -> Tree:
        return {name: parameter.detach().numpy().copy() for name, parameter in copies.module.named_parameters()}

    def host_losses(params: Tree, x: Any, y: Any) -> Any:
        with copies.at(params, training=False) as module, torch.no_grad():
            return losses(module(_tensor(x)), _tensor(y)).numpy()

    def host_labels(params: Tree, x: Any) -> Any:
        with copies.at(params, training=False) as module, torch.no_grad():
            return predict(module(_tensor(x))).numpy().astype(np.int32) if predict else None

    def host_gradient(params: Tree, x: Any, y: Any, weights: Any) -> Tree:
        with copies.at(params, training=False) as module:
            return _by_name(module, _gradient(_weighted(module, x, y, weights), module))

    def host_curvature(params: Tree, along: Tree, x: Any, y: Any, weights: Any) -> Tree:
        with copies.at(params, training=False) as module:
            gradient = _gradient(_weighted(module, x, y, weights), module, create_graph=True)
            slope = sum((gradient[name] * _tensor(along[name])).sum() for name in gradient)
            return _by_name(module, _gradient(slope, module))

    def _weighted(module: nn.Module, x: Any, y: Any, weights: Any) -> torch.Tensor:
        return (losses(module(_tensor(x)), _tensor(y)) * _tensor(weights)).sum()

    checked: set[Any] = set()

    def check_losses(x: jax.Array, y: jax.Array) -> None:
        """Refuse a loss that is a mean, when it is traced: in the callback it would be an error without a sentence."""
        kind = (x.shape[1:], y.shape[1:])
        if kind not in checked:
            found = host_losses(start(None), *(np.zeros((2, *each.shape[1:]), each.dtype) for each in (x, y)))
            if found.shape != (2,):
                raise ConfigError(
                    "the loss of a module must be one number per example (reduction='none'), of shape (examples,); "
                    f"for 2 examples it has shape {found.shape}"
                )
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

    return Model(type(copies.module).__name__, start, loss, labels if predict else None, gradient)


@dataclass(frozen=True)
class TorchSolver:
    """A PyTorch optimiser on h_k, over the paired mini-batches; every evaluation of a mini-batch is a step."""

    name: str
    copies: _Copies
    losses: Loss
    optimiser: Optimiser
    is_sgd: bool = False
    momentum: float = 0.0
    nesterov: bool = False

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Take steps up to the budget, or until the iterate is gamma-inexact at the end of an epoch."""
        target = Target(local) if local.gamma > 0 else None
        if local.budget == 0 or (target is not None and target.is_met(local.start)):
            return local.start, 0
        with self._randomness(local), self.copies.at(to_numpy(local.start), training=True) as module:
            terms = _Terms(module, to_numpy(local.problem))
            optimiser = self.optimiser(module.parameters(), lr=local.learning_rate)
            evaluate: Any = _Evaluation(module, optimiser, self.losses, terms, local.budget)
            x, y = local.samples.of(local.device)
            for rows in local.batches():
                evaluate.x, evaluate.y = _tensor(x[rows]), _tensor(y[rows])
                try:
                    optimiser.step(evaluate)
                except _BudgetSpent:
                    break
                if evaluate.count == local.budget:
                    break
                is_epoch = evaluate.count % local.steps_per_epoch == 0
                if target and is_epoch and target.is_met(_by_name(module, dict(module.named_parameters()))):
                    break
            return _by_name(module, dict(module.named_parameters())), evaluate.count

    @contextmanager
    def _randomness(self, local: LocalProblem) -> Iterator[None]:
        """Where the module draws random numbers, let solves take turns, each seeded for its round and device."""
        with _RANDOM if self.copies.is_random else nullcontext():
            if not self.copies.is_random:
                yield
                return
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(solver_key(local))
                yield


class _BudgetSpent(Exception):  # noqa: N818 - not an error: it ends a step that evaluates more than once
    """An optimiser asked for more than the budget pays for."""


class _Evaluation:
    """What an optimiser calls for the gradient of h_k on the present mini-batch."""

    def __init__(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, losses: Loss, terms: _Terms, budget: int
    ) -> None:
        self._module, self._optimiser, self._losses, self._terms, self._budget = (
            module,
            optimiser,
            losses,
            terms,
            budget,
        )
        self._needs_value = isinstance(optimiser, torch.optim.LBFGS)
        self.x, self.y = torch.empty(0), torch.empty(0)
        self.count = 0

    def __call__(self) -> torch.Tensor:
        if self.count == self._budget:
            raise _BudgetSpent
        self.count += 1
        with torch.enable_grad():
            self._optimiser.zero_grad()
            value = self._losses(self._module(self.x), self.y).mean()
            value.backward()
        with torch.no_grad():
            self._terms.add_to_gradients()
            return value + self._terms.value() if self._needs_value else value


class _Terms:
    """<c, w> + (mu / 2) ||w - a||^2, with a, mu and c held once for the whole solve."""

    def __init__(self, module: nn.Module, problem: Subproblem) -> None:
        linear, mus = problem.linear, mu_per_leaf(problem)
        self._each = [
            (
                parameter,
                float(mus[name]),
                _tensor(problem.anchor[name]),
                None if linear is None else _tensor(linear[name]),
            )
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ]

    def add_to_gradients(self) -> None:
        for parameter, mu, anchor, linear in self._each:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if mu:
                parameter.grad.add_(parameter - anchor, alpha=mu)
            if linear is not None:
                parameter.grad.add_(linear)

    def value(self) -> torch.Tensor:
        total = torch.zeros(())
        for parameter, mu, anchor, linear in self._each:
            total += 0.5 * mu * (parameter - anchor).square().sum()
            if linear is not None:
                total += (linear * parameter).sum()
        return total


def _tensor(array: Any) -> torch.Tensor:
    """Return a copy as a tensor; labels as the 64-bit numbers that PyTorch wants."""
    own = np.array(array)
    return torch.from_numpy(own.astype(np.int64) if np.issubdtype(own.dtype, np.integer) else own)


def _gradient(value: Any, module: nn.Module, create_graph: bool = False) -> dict[str, torch.Tensor]:
    """Return the derivative of a value by each parameter that it depends on."""
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(value, list(trained.values()), create_graph=create_graph, allow_unused=True)
    return {name: each for name, each in zip(trained, found, strict=True) if each is not None}


def _by_name(module: nn.Module, tensors: dict[str, torch.Tensor]) -> Tree:
    """Return one array for each parameter of a module; zeros where there is no tensor."""
    return {
        name: tensors[name].detach().numpy().copy() if name in tensors else np.zeros(parameter.shape, np.float32)
        for name, parameter in module.named_parameters()
    }


def _shapes(params: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
