"""How programs are compiled: for one core each, and kept on disk for the next start.

Parallelism comes from working on different devices on different cores (`fedprox.core.threads`), so each program is
compiled to run on a single one; then its result cannot depend on how many cores there are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Any

import jax

from fedprox.core.cache import KeptPrograms, cache_folder
from fedprox.core.fast_forms import in_fast_forms
from fedprox.core.kernels import one_kernel

__all__ = ["compiled", "is_plain_arithmetic", "needs_its_first", "prepare"]


def compiled(function: Callable[..., Any], *, small: bool = False) -> Callable[..., Any]:
    """Return `function` compiled for one core; with `small`, where no product of two matrices is large, as one kernel.

    In one kernel products are inline code; XLA's library for them, which is faster for larger ones, must not be used.
    Elsewhere convolutions and pooling are brought into the forms that the library takes (`fedprox.core.fast_forms`).
    """
    if jax.default_backend() != "cpu":
        return jax.jit(function)
    options: dict[str, Any] = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_prefer_vector_width": _BITS}
    if small:
        options["xla_cpu_experimental_ynn_fusion_type"] = ""
        options["xla_backend_optimization_level"] = 2  # 3 unrolls more short loops
    return jax.jit(one_kernel(function) if small else in_fast_forms(function), compiler_options=options)


_BITS = 512  # of a vector register; XLA's compiler prefers 256, also where the processor has larger ones


def is_plain_arithmetic(function: Callable[..., Any], *shapes: Any) -> bool:
    """Return whether a function of arrays of these shapes is arithmetic that may be part of a single kernel.

    Other operations (sorting, linear algebra, calls back to Python, ...) cannot be compiled into one.
    """
    return _is_plain(jax.make_jaxpr(function)(*shapes).jaxpr)


def needs_its_first(function: Callable[..., Any], *shapes: Any) -> bool:
    """Return whether results of a function of arrays of these shapes depend on all arrays of its first argument."""
    arrays = len(jax.tree.leaves(shapes[0]))
    return all(_needed(jax.make_jaxpr(function)(*shapes).jaxpr)[:arrays])


def _is_plain(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        inner = [value for value in equation.params.values() if hasattr(value, "jaxpr")]
        if equation.primitive.name not in (_CALLS if inner else _ARITHMETIC):
            return False
        if not all(_is_plain(each.jaxpr) for each in inner):
            return False
    return True


def _needed(jaxpr: Any) -> list[bool]:
    """Return for each argument whether a result depends on it."""
    needed = set(map(id, jaxpr.outvars))
    for equation in reversed(jaxpr.eqns):
        if needed.isdisjoint(map(id, equation.outvars)):
            continue
        inner = [value for value in equation.params.values() if hasattr(value, "jaxpr")]
        reads = _needed(inner[0].jaxpr) if inner else [True] * len(equation.invars)
        needed.update(id(value) for value, is_read in zip(equation.invars, reads, strict=True) if is_read)
    return [id(argument) in needed for argument in jaxpr.invars]


_CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"}
# fmt: off
_ARITHMETIC = {
    "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "convert_element_type", "copy", "div", "eq",
    "exp", "expm1", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max",
    "min", "mul", "ne", "neg", "not", "or", "pow", "reduce_max", "reduce_min", "reduce_sum", "reshape", "round",
    "rsqrt", "select_n", "sign", "slice", "sqrt", "square", "squeeze", "stop_gradient", "sub", "tanh",
}
# fmt: on


def prepare() -> None:
    """Set JAX up for many short programs; what the user has set or started already is left alone.

    Programs run in the thread that calls them, without a hand-over to another one, and compiled programs are kept in
    the user's cache folder.
    """
    _keep_memory()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None and (folder := cache_folder()) is not None:
        _use_cache(KeptPrograms(folder))
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _use_cache(programs: KeptPrograms) -> None:
    """Make JAX use this cache instead of its own, which loads damaged entries unchecked.

    JAX has no public interface for this; if its internals have changed, its own cache is used.
    """
    from jax._src import compilation_cache

    if hasattr(compilation_cache, "get_file_cache"):
        vars(compilation_cache)["get_file_cache"] = lambda path: (programs, path)


def _keep_memory() -> None:
    """Make the C library keep freed memory for the next round instead of returning it to the system.

    With a model of several megabytes, a round frees all that it has allocated, and mapping the pages again takes as
    long as the arithmetic on them. So does the scratch memory of a network, which is mapped on its own above 32 MB
    unless mappings are off. Only the GNU C library supports this; others are left as they are.
    """
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with contextlib.suppress(OSError, AttributeError, TypeError):
            adjust = ctypes.CDLL(None).mallopt
            adjust(_MMAP_MAX, 0)
            adjust(_TRIM_THRESHOLD, 512 << 20)


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # as malloc.h numbers them
