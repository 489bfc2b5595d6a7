"""What a module holds beside its parameters and statistics: counters, buffers that are not saved, plain attributes.

None of it is sent or merged, and one copy of a module serves many devices, one after another. So each use of a copy
begins with what the module was given with; else results would depend on which thread solved which device.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fedprox.core.extras import needs_extra

with needs_extra("torch", "`fedprox.adapters.torch`"):
    import torch
    from torch import nn

__all__ = ["Memory"]

_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))  # cannot be changed in place


class Memory:
    """The counters, unsaved buffers and plain attributes of a module, part by part."""

    def __init__(self, module: nn.Module, merged: Collection[str]) -> None:
        self._parts = [_Part(name, part, merged) for name, part in module.named_modules()]

    def restore(self, module: nn.Module) -> None:
        """Give a copy of the module what the module had."""
        for kept, part in zip(self._parts, module.modules(), strict=True):
            kept.restore(part)


class _Part:
    def __init__(self, name: str, part: nn.Module, merged: Collection[str]) -> None:
        own = vars(part)
        self._names = frozenset(own)
        self._plain = {key: value for key, value in own.items() if isinstance(value, _PLAIN) and key != "training"}
        self._tensors = {key: value.clone() for key, value in own.items() if isinstance(value, torch.Tensor)}
        prefix = f"{name}." if name else ""
        buffers = {key: value for key, value in part.named_buffers(recurse=False) if prefix + key not in merged}
        self._buffers = {key: value.clone() for key, value in buffers.items()}

    def restore(self, part: nn.Module) -> None:
        own: dict[str, Any] = vars(part)
        own.update(self._plain)
        for key in [key for key in own if key not in self._names] if len(own) > len(self._names) else ():
            del own[key]
        own.update((key, value.clone()) for key, value in self._tensors.items())
        for key, value in self._buffers.items():
            part._buffers[key] = value.clone()
