"""A PyTorch module as the model and the solver use it: copies for threads, arrays in and out, errors in one sentence.

PyTorch uses one core per device, like everything else, so that results do not depend on the number of cores.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.adapters.torch_memory import Memory
from fedprox.adapters.unusual_modules import check_module
from fedprox.core.errors import ConfigError, DataError, short
from fedprox.core.extras import needs_extra
from fedprox.core.name_patterns import matches_any
from fedprox.core.trees import Tree
from fedprox.models.host_model import Sums

with needs_extra("torch", "`fedprox.adapters.torch`"):
    import torch
    from torch import nn

__all__ = ["Loss", "ModuleAt", "ModuleCopies", "Predict", "first_line", "largest"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Predict = Callable[[torch.Tensor], torch.Tensor]
_NUMBERS = 1 << 16  # of the examples that are taken at once
_FEW = 4  # examples that show whether losses can be repeated, and depend on one example each


class ModuleCopies:
    """Copies of a module, one for each thread that is at work."""

    def __init__(self, module: nn.Module, losses: Loss, predict: Predict | None, device: str) -> None:
        check_module(module)
        if isinstance(losses, type) or not callable(losses):
            raise ConfigError(
                f"`loss` must be a function or an instance, called as loss(outputs, y); got {short(losses)}"
            )
        own = _copied(module)
        try:
            self.device = torch.device(device)
            self.module = own.to(self.device)
            torch.zeros(1, device=self.device).cpu()  # refuses a device without numbers
        except (RuntimeError, AssertionError, TypeError) as error:  # PyTorch asserts that it was built for the device
            raise ConfigError(
                f"`device` must name a device of this machine; got {device!r}: {first_line(error)}"
            ) from None
        state = self.state(self.module)
        for name, tensor in state.items():
            if tensor.dtype != torch.float32:
                raise ConfigError(f"a module must have parameters of type float32; {name!r} is {tensor.dtype}")
        self.predict = predict
        # None until a solve has shown whether its training draws random numbers
        self.has_dropout = _has_dropout(module)
        self.is_random = True if self.has_dropout or self.device.type != "cpu" else None
        self._is_repeatable = self._is_separate = False
        self._losses = losses
        self._free: list[nn.Module] = []
        self._memory = Memory(self.module, state)
        self._trained = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        self.frozen = tuple(name for name, is_trained in self._trained.items() if not is_trained)

    @staticmethod
    def state(module: nn.Module) -> dict[str, torch.Tensor]:
        """Return parameters and running statistics by name; counters, which cannot be averaged, are left out."""
        kept = module.state_dict(keep_vars=True)
        parameters = dict(module.named_parameters())  # of shared ones, the first name alone
        others = {name: each for name, each in kept.items() if not isinstance(each, nn.Parameter)}
        return parameters | {name: each for name, each in others.items() if each.is_floating_point()}

    @contextmanager
    def at(self, params: Tree, *, training: bool = False, frozen: tuple[str, ...] = ()) -> Iterator[ModuleAt]:
        """Lend a copy with the given parameters, of which the frozen ones have no gradient."""
        try:
            module = self._free.pop()
        except IndexError:
            module = copy.deepcopy(self.module)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                self._write(params, module)
                self._memory.restore(module)
                for name, parameter in module.named_parameters():
                    parameter.requires_grad_(self._trained[name] and not matches_any(name, frozen))
                    parameter.grad = None
            yield ModuleAt(self, module.train(training), self._losses)
        finally:
            torch.set_num_threads(threads)
            self._free.append(module)

    def _write(self, params: Tree, module: nn.Module) -> None:
        try:
            for name, tensor in self.state(module).items():
                tensor.copy_(torch.from_numpy(np.array(params[name])))
        except (KeyError, IndexError, TypeError, RuntimeError) as error:
            raise ConfigError(
                f"module {type(module).__name__} must get its own parameters, so give the model and the solver of one "
                f"call of `from_torch`; {name!r} cannot be set: {first_line(error)}"
            ) from error

    def check_repeatable(self, at: ModuleAt, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Refuse a module whose losses differ from call to call in evaluation mode; it is checked once."""
        if self._is_repeatable:
            return
        few, labels = x[:_FEW], at.tensor(y[:_FEW])
        first, second = (at.each_loss(at.outputs(at.tensor(few)), labels) for _ in range(2))  # it may change its input
        if not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
            raise ConfigError(
                f"module {type(self.module).__name__} must give the same outputs each time in evaluation mode; they "
                "differ: a random function such as dropout must get `training=self.training`, and nothing may be kept "
                "from call to call"
            )
        self._is_repeatable = True

    def check_separate(self, at: ModuleAt, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Warn of losses of examples that depend on which others are in the batch; it is checked once."""
        if self._is_separate or len(x) < _FEW:
            return
        self._is_separate = True
        all_of_them, without_first = slice(_FEW), slice(1, _FEW)  # in a sequence, all may depend on the first
        with torch.no_grad():
            losses, expected = (
                at.each_loss(at.outputs(at.tensor(x[rows])), at.tensor(y[rows]))
                for rows in (all_of_them, without_first)
            )
        if not torch.allclose(losses[1:], expected, rtol=1e-3, atol=1e-4, equal_nan=True):
            warnings.warn(
                f"the loss of an example should not depend on the other examples of its batch; with module "
                f"{type(self.module).__name__} it does: are outputs and labels of different shapes subtracted, or is "
                "the batch taken for a sequence (`batch_first`)?",
                stacklevel=2,
            )


@dataclass(frozen=True)
class ModuleAt:
    """A copy of the module with its parameters set."""

    copies: ModuleCopies
    module: nn.Module
    losses_of: Loss

    def tensor(self, array: Any) -> torch.Tensor:
        """Return a copy as a tensor: images of bytes as numbers from 0 to 1, other integers as 64-bit ones."""
        own = np.array(array)
        if own.dtype == np.uint8 and own.ndim > 2:
            own = own.astype(np.float32) / np.float32(255)
        elif np.issubdtype(own.dtype, np.integer):
            own = own.astype(np.int64)
        return torch.from_numpy(own).to(self.copies.device)

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return the module's outputs for a batch."""
        try:
            found: torch.Tensor = self.module(x)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            kind, shape = str(x.dtype).removeprefix("torch."), tuple(x.shape)
            name = type(self.module).__name__
            raise DataError(
                f"module {name} does not take a batch of shape {shape} and {kind}{_hint(shape)}: {first_line(error)}"
            ) from error
        return found

    def each_loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return one loss per example."""
        try:
            found = self.losses_of(outputs, y)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            kinds = f"{_kind(outputs)} and labels of {str(y.dtype).removeprefix('torch.')}"
            raise ConfigError(f"`loss` cannot be computed from {kinds}: {first_line(error)}") from error
        if not isinstance(found, torch.Tensor):
            raise ConfigError(f"`loss` must return a tensor, one number per example; got {type(found).__name__}")
        if tuple(found.shape) != (len(y),):
            raise ConfigError(
                "the loss of a module must be one number per example (reduction='none'), of shape (examples,); "
                f"for {len(y)} examples it has shape {tuple(found.shape)}"
            )
        return found

    def losses(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the loss of each example, and whether its label is predicted."""
        losses, hits = np.zeros(len(y), np.float32), np.zeros(len(y), bool)
        self.copies.check_separate(self, x, y)
        with torch.no_grad():
            self.copies.check_repeatable(self, x, y)
            for rows in _batches(x):
                outputs, labels = self.outputs(self.tensor(x[rows])), self.tensor(y[rows])
                losses[rows] = self.each_loss(outputs, labels).float().cpu().numpy()  # NumPy has no bfloat16
                hits[rows] = self._hits(outputs, labels)
        return losses, hits

    def predictions(self, x: NDArray[Any]) -> NDArray[np.int32]:
        """Return the label predicted for each example."""
        found = np.zeros(len(x), np.int32)
        with torch.no_grad():
            for rows in _batches(x):
                outputs = self.outputs(self.tensor(x[rows]))
                found[rows] = self.labels(outputs, len(x[rows])).cpu().numpy()
        return found

    def sums(self, x: NDArray[Any], y: NDArray[Any]) -> Sums:
        """Return summed loss, hits and gradient over some examples."""
        loss, correct = 0.0, 0
        self.copies.check_separate(self, x, y)
        gradient: dict[str, torch.Tensor] = {}
        for rows in _batches(x):
            outputs, labels = self.outputs(self.tensor(x[rows])), self.tensor(y[rows])
            value = self.each_loss(outputs, labels).sum()
            for name, more in self.gradient(value).items():
                gradient[name] = gradient[name].add_(more) if name in gradient else more
            loss += float(value.detach())
            with torch.no_grad():
                correct += int(self._hits(outputs, labels).sum())
        return Sums(loss, correct, self.arrays(gradient))

    def gradient(self, value: Any, create_graph: bool = False) -> dict[str, torch.Tensor]:
        """Return the derivative of a value by each parameter that it depends on."""
        trained = {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        found = torch.autograd.grad(value, list(trained.values()), create_graph=create_graph, allow_unused=True)
        pairs = zip(trained, found, strict=True)
        return {name: each.to_dense() if each.is_sparse else each for name, each in pairs if each is not None}

    def arrays(self, tensors: dict[str, torch.Tensor] | None = None) -> Tree:
        """Return one array for each entry of the state; of the given tensors, zeros where there is none."""
        state = self.copies.state(self.module)
        given = state if tensors is None else tensors
        return {
            name: given[name].detach().cpu().numpy().copy()
            if name in given
            else np.zeros(tuple(each.shape), np.float32)
            for name, each in state.items()
        }

    def labels(self, outputs: Any, count: int) -> torch.Tensor:
        """Return the predicted label of each of `count` examples."""
        predict = self.copies.predict
        if predict is None:
            raise ValueError("the model predicts no labels")
        if predict is largest and isinstance(outputs, torch.Tensor) and outputs.shape[1:] == (1,):
            raise ConfigError(
                f"`predict` must be given for {_kind(outputs)}, whose largest is always the first: a function of the "
                "outputs, or None for a regression"
            )
        try:
            found = predict(outputs)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise ConfigError(f"`predict` cannot be computed from {_kind(outputs)}: {first_line(error)}") from error
        if not isinstance(found, torch.Tensor) or tuple(found.shape) != (count,):
            raise ConfigError(
                f"`predict` must return a tensor of one label per example, of shape ({count},); "
                f"it returned {_kind(found)}"
            )
        if found.is_floating_point():
            kind = str(found.dtype).removeprefix("torch.")
            raise ConfigError(f"`predict` must return labels, integers such as outputs.argmax(1); it returned {kind}")
        return found

    def _hits(self, outputs: Any, labels: torch.Tensor) -> NDArray[np.bool_]:
        if self.copies.predict is None:
            return np.zeros(len(labels), bool)
        found: NDArray[np.bool_] = (self.labels(outputs, len(labels)) == labels).cpu().numpy()
        return found


def largest(outputs: torch.Tensor) -> torch.Tensor:
    """Return the number of the largest output of each example: the prediction of a classifier."""
    return outputs.argmax(1)


def _batches(x: NDArray[Any]) -> Iterator[slice]:
    """Yield slices of rows that fit into the cache but are large enough for a call."""
    rows = min(max(_NUMBERS // max(x[:1].size, 1), 32), 1024)
    for begin in range(0, len(x), rows):
        yield slice(begin, min(begin + rows, len(x)))


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"module {type(module).__name__} must be one that `copy.deepcopy` can copy: {first_line(error)}"
        ) from None


def _has_dropout(module: nn.Module) -> bool:
    return any(isinstance(each, nn.modules.dropout._DropoutNd) for each in module.modules())


def _kind(outputs: Any) -> str:
    is_tensor = isinstance(outputs, torch.Tensor)
    return f"outputs {tuple(outputs.shape)}" if is_tensor else f"outputs of type {type(outputs).__name__}"


def _hint(shape: tuple[int, ...]) -> str:
    """Return the hint for images whose channels come last, as in CIFAR-10 here.

    >>> _hint((2, 32, 32, 3))
    ' (the channels are last: x.permute(0, 3, 1, 2) moves them)'
    """
    is_last = len(shape) == 4 and shape[3] <= 4 < min(shape[1:3])
    return " (the channels are last: x.permute(0, 3, 1, 2) moves them)" if is_last else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind where there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
