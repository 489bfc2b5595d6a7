"""PyTorch modules that cannot be trained are refused; layers that PyTorch itself overlooks are warned of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from fedprox.core.errors import ConfigError, short
from fedprox.core.extras import needs_extra

with needs_extra("torch", "`fedprox.adapters.torch`"):
    import torch
    from torch import nn

__all__ = ["check_module"]


def check_module(module: Any) -> None:
    """Refuse what is no module, or one without known and trained parameters; warn of layers in plain lists."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"`module` must be a torch.nn.Module, not a class; got {short(module)}")
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError("`module` must be a module of Python; got a TorchScript one, whose copies cannot be trained")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"a module must have parameters of known shape; {name!r} gets its shape when the module is first called"
            )
    hint = _hidden_layers(module)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"a module must have a parameter that is trained; {type(module).__name__} has none{hint}")
    if hint:
        warnings.warn(f"not all layers of module {type(module).__name__} are trained{hint}", stacklevel=5)


def _hidden_layers(module: nn.Module) -> str:
    """Return which plain list or dictionary has layers, whose parameters PyTorch does not see, and what to use instead.

    >>> module = nn.Flatten()
    >>> module.layers = [nn.Linear(2, 3)]
    >>> _hidden_layers(module)
    ': PyTorch does not see those in the list `layers`; use nn.ModuleList'
    """
    seen = {id(each) for each in [*module.modules(), *module.parameters()]}
    for part in module.modules():
        for name, value in vars(part).items():
            if name.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            hidden = [each for each in _inside(value) if id(each) not in seen]
            if any(not isinstance(each, nn.Module) or any(True for _ in each.parameters()) for each in hidden):
                kind = "Module" if isinstance(hidden[0], nn.Module) else "Parameter"
                better = f"nn.{kind}{'Dict' if isinstance(value, dict) else 'List'}"
                return f": PyTorch does not see those in the {type(value).__name__} `{name}`; use {better}"
    return ""


def _inside(value: Any) -> Iterator[nn.Module | nn.Parameter]:
    """Yield the modules and parameters in lists and dictionaries, and in those within them."""
    if isinstance(value, nn.Module | nn.Parameter):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _inside(each)
