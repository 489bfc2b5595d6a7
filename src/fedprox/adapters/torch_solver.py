"""The local loop in PyTorch: an optimiser of PyTorch's on h_k, over the mini-batches that every solver sees."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedprox.adapters.torch_module import ModuleAt, ModuleCopies, first_line
from fedprox.core.errors import ConfigError, short
from fedprox.core.extras import needs_extra
from fedprox.core.own_code import own_code
from fedprox.core.trees import Tree, to_numpy
from fedprox.solvers.python_callable import solver_key
from fedprox.solvers.solver import LocalProblem
from fedprox.solvers.stepwise import Target
from fedprox.solvers.subproblem import Subproblem, mu_per_leaf

with needs_extra("torch", "`fedprox.adapters.torch`"):
    import torch
    from torch import nn

__all__ = ["Optimiser", "TorchSolver", "Transform", "build_solver"]

Optimiser = Callable[..., torch.optim.Optimizer]
Transform = Callable[..., torch.Tensor]
"""`transform(x)` or `transform(x, generator)`: a batch of inputs, changed at random."""
_RANDOM = threading.Lock()  # PyTorch, NumPy and Python have one generator each for the entire process


def build_solver(copies: ModuleCopies, optimiser: Optimiser, transform: Transform | None = None) -> TorchSolver:
    """Return the solver of an optimiser, with the momentum of PyTorch's SGD, with which methods can count gradients.

    PyTorch's steps are those of `fedprox.solvers.sgd`: v <- m v + g and w <- w - eta v, or g + m v with Nesterov.
    Dampening would change the count.
    """
    if not callable(optimiser) or isinstance(optimiser, torch.optim.Optimizer):
        raise ConfigError(
            f"`optimiser` must be a class, such as torch.optim.SGD, or a function of parameters and lr: each device "
            f"has its own; got {short(optimiser)}"
        )
    if transform is not None and (isinstance(transform, type) or not callable(transform)):
        raise ConfigError(
            f"`transform` must be a function of a batch, or of a batch and a generator; got {short(transform)}"
        )
    if transform is not None:
        _takes_generator(transform)  # refuses other parameters
    kind = getattr(optimiser, "func", optimiser)  # of a functools.partial
    solver = TorchSolver(f"torch.{getattr(kind, '__name__', type(kind).__name__)}", copies, optimiser, transform)
    rate = 0.25
    parameter = torch.zeros(1, 1, requires_grad=True)  # some optimisers take matrices only
    with own_code("`optimiser`, called with parameters and lr,", ConfigError):
        made = optimiser([parameter], lr=rate)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"`optimiser` must return a torch.optim.Optimizer; got {short(made)}")
    if any(each is not parameter for group in made.param_groups for each in group["params"]):
        raise ConfigError(
            "`optimiser` must change the parameters that it is called with, those of one device; "
            f"{type(made).__name__} has others, such as those of the module itself"
        )
    if type(made) is not torch.optim.SGD:
        return solver
    if made.defaults["dampening"]:
        return replace(solver, name=f"{solver.name} with dampening")
    if made.defaults["maximize"] or made.defaults["lr"] != rate:
        return solver
    momentum, nesterov = float(made.defaults["momentum"]), bool(made.defaults["nesterov"])
    return replace(solver, is_sgd=True, momentum=momentum, nesterov=nesterov)


@dataclass(frozen=True)
class TorchSolver:
    """A PyTorch optimiser on h_k, over the paired mini-batches; every evaluation of a mini-batch is a step."""

    name: str
    copies: ModuleCopies
    optimiser: Optimiser
    transform: Transform | None = None
    is_sgd: bool = False
    momentum: float = 0.0
    nesterov: bool = False
    updates_statistics: ClassVar[bool] = True

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Take steps up to the budget, or until the iterate is gamma-inexact at the end of an epoch."""
        target = Target(local) if local.gamma > 0 else None
        if local.budget == 0 or (target is not None and target.is_met(local.start)):
            return local.start, 0
        lent = self.copies.at(to_numpy(local.start), training=True, frozen=local.model.frozen)
        with self._randomness(local), lent as at:
            change = self._seeded_transform(local)
            optimiser = self.optimiser(at.module.parameters(), lr=local.learning_rate)
            evaluate: Any = _Evaluation(at, optimiser, _Terms(at, to_numpy(local.problem)), local.budget)
            x, y = local.samples.of(local.device)
            for rows in local.batches():
                evaluate.x, evaluate.y = change(at.tensor(x[rows])), at.tensor(y[rows])
                try:
                    optimiser.step(evaluate)
                except _BudgetSpent:
                    break
                except RuntimeError as error:
                    raise ConfigError(
                        f"the optimiser of solver {self.name!r} cannot take a step: {first_line(error)}"
                    ) from error
                if evaluate.count == local.budget:
                    break
                is_epoch = evaluate.count % local.steps_per_epoch == 0
                if target and is_epoch and target.is_met(at.arrays()):
                    break
            return at.arrays(), evaluate.count

    def _seeded_transform(self, local: LocalProblem) -> Callable[[torch.Tensor], torch.Tensor]:
        transform = self.transform
        if transform is None:
            return lambda x: x
        if not _takes_generator(transform):
            return lambda x: _transformed(transform(x), len(x))
        generator = torch.Generator(self.copies.device).manual_seed(solver_key(local))
        return lambda x: _transformed(transform(x, generator), len(x))

    @contextmanager
    def _randomness(self, local: LocalProblem) -> Iterator[None]:
        """Where module or transform draw from the generators of the process, let solves take turns, each with its seed.

        Whether a module draws (functions do as well as layers) is seen in its first solve.
        """
        copies = self.copies
        if copies.is_random is False and (self.transform is None or _takes_generator(self.transform)):
            yield
            return
        device = copies.device
        with _RANDOM, torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]), _other_generators():
            key = solver_key(local)
            torch.manual_seed(key)
            np.random.seed(key)  # noqa: NPY002 - users' functions draw from it
            random.seed(key)
            before = _drawn()
            yield
            if copies.is_random is None:
                copies.is_random = before != _drawn()


@contextmanager
def _other_generators() -> Iterator[None]:
    """Leave the generators of NumPy and Python as they were."""
    ours, theirs = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(ours)  # noqa: NPY002
        random.setstate(theirs)


def _drawn() -> tuple[Any, ...]:
    """Return what changes with every draw from a generator of the process."""
    numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), numpy["key"].tobytes(), numpy["pos"], random.getstate()


def _transformed(found: Any, count: int) -> torch.Tensor:
    """Return what a transform made of a batch of `count` examples; refuse what is no batch of as many."""
    if not isinstance(found, torch.Tensor) or found.shape[:1] != (count,):
        kind = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"`transform` must return a tensor of as many examples as it was given, {count} here; got {kind}"
        )
    return found


def _takes_generator(transform: Transform) -> bool:
    """Return whether a transform takes a generator as its second parameter."""
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in positional if each.default is each.empty]
    if len(needed) > 2 or not (positional or any(each.kind is each.VAR_POSITIONAL for each in parameters)):
        raise ConfigError(f"`transform` must take a batch, or a batch and a generator; got {len(needed)} parameters")
    return len(needed) == 2


class _BudgetSpent(Exception):  # noqa: N818 - not an error: it ends a step that evaluates more than once
    """An optimiser requested more evaluations than the budget covers."""


class _Evaluation:
    """What an optimiser calls for the gradient of h_k on the current mini-batch."""

    def __init__(self, at: ModuleAt, optimiser: torch.optim.Optimizer, terms: _Terms, budget: int) -> None:
        self._at, self._optimiser, self._terms, self._budget = at, optimiser, terms, budget
        self._needs_value = isinstance(optimiser, torch.optim.LBFGS)
        # those that the module itself keeps in evaluation mode stay there
        normalised = (each for each in at.module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm))
        self._normalised = [each for each in normalised if each.training and each.running_mean is not None]
        self.x, self.y = torch.empty(0), torch.empty(0)
        self.count = 0

    def __call__(self) -> torch.Tensor:
        if self.count == self._budget:
            raise _BudgetSpent
        self.count += 1
        lone = _by_running_statistics(self._normalised) if len(self.x) == 1 else nullcontext()
        with torch.enable_grad(), lone:
            self._optimiser.zero_grad()
            value = self._at.each_loss(self._at.outputs(self.x), self.y).mean()
            if not value.requires_grad:
                raise ConfigError(
                    f"the loss of module {type(self._at.module).__name__} must have a gradient; it has none: the "
                    "module or the loss uses `torch.no_grad` or `detach`"
                )
            try:
                value.backward()
            except RuntimeError as error:
                name = type(self._at.module).__name__
                raise ConfigError(f"the gradient of module {name} cannot be computed: {first_line(error)}") from error
        with torch.no_grad():
            self._terms.add_to_gradients()
            return value + self._terms.value() if self._needs_value else value


@contextmanager
def _by_running_statistics(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Let batch normalisation of one value per channel, which has no variance, use the running statistics."""

    def choose(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        layer.train(inputs[0].numel() > inputs[0].shape[1])

    hooks = [layer.register_forward_pre_hook(choose) for layer in layers]
    try:
        yield
    finally:
        for hook, layer in zip(hooks, layers, strict=True):
            hook.remove()
            layer.train()


class _Terms:
    """<c, w> + (mu / 2) ||w - a||^2, with a, mu and c held once for the entire solve."""

    def __init__(self, at: ModuleAt, problem: Subproblem) -> None:
        linear, mus = problem.linear, mu_per_leaf(problem)
        self._each: list[tuple[nn.Parameter, float, torch.Tensor, torch.Tensor | None]] = [
            (
                parameter,
                float(mus[name]),
                at.tensor(problem.anchor[name]),
                None if linear is None else at.tensor(linear[name]),
            )
            for name, parameter in at.module.named_parameters()
            if parameter.requires_grad
        ]

    def add_to_gradients(self) -> None:
        for parameter, mu, anchor, linear in self._each:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse and (mu or linear is not None):
                parameter.grad = parameter.grad.to_dense()
            if mu:
                parameter.grad.add_(parameter - anchor, alpha=mu)
            if linear is not None:
                parameter.grad.add_(linear)

    def value(self) -> Any:
        total: Any = 0.0
        for parameter, mu, anchor, linear in self._each:
            total = total + 0.5 * mu * (parameter - anchor).square().sum()
            if linear is not None:
                total = total + (linear * parameter).sum()
        return total
