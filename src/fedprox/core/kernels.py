"""Parts of a program that XLA's CPU compiler makes one piece of machine code, or keeps apart from others.

XLA runs a program as a list of small kernels. It chooses what goes into one; the marks here choose for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

__all__ = ["SMALL", "apart", "is_within_one_kernel", "one_kernel"]

SMALL = 128  # XLA turns products up to this size in every dimension into inline code


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function, called within a compiled one, to become a single piece of machine code on a CPU.

    XLA runs a program as a list of small kernels and pays about 0.1 microseconds for each. That is most of the time
    of a mini-batch step of a small model, and none of it remains when the whole loop is one kernel. It pays only as
    long as products of two matrices are small (at most `SMALL` in every dimension; those with a vector may be of any
    size), and for gathers, which would otherwise be divided over threads. All arrays must be used: XLA aborts the
    process over an unused one.
    """
    if jax.default_backend() != "cpu":
        return function
    inner = jax.jit(function)

    def call(*arguments: Any) -> Any:
        outside = _within_one_kernel.set(True)
        try:
            with set_xla_metadata(xla_cpu_small_call="true", inlineable="false"):
                return inner(*arguments)
        finally:
            _within_one_kernel.reset(outside)

    return call


def apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function, called within a compiled one, as a program of its own, which XLA fuses with nothing around it.

    XLA's CPU compiler moves operations into each of the loops that use their results, where it computes them again, and
    often no longer a vector at a time. The call itself costs a few nanoseconds.
    """
    if jax.default_backend() != "cpu":
        return function
    inner = jax.jit(function)

    def call(*arguments: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return inner(*arguments)

    return call


_within_one_kernel: ContextVar[bool] = ContextVar("within_one_kernel", default=False)


def is_within_one_kernel() -> bool:
    """Return whether what is being traced is to become part of a single kernel."""
    return _within_one_kernel.get()
