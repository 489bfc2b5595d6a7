"""Objects given from Python in the place of parts must be of the right kind; the error says what to give instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedprox.config import Config
from fedprox.core.errors import ConfigError, short
from fedprox.methods import Method
from fedprox.population import Population
from fedprox.runs.replaced import PLACES

__all__ = ["check_given"]

_KINDS: Mapping[str, tuple[Any, str]] = {
    "data": (Population, "a Population"),
    "method": (Method, "a Method"),
}
_HINTS = {"data": ": make one with Population.from_arrays(x, y, device)"}
_FUNCTIONS = ("sampler", "systems", "schedule", "stopping")
_UNUSED = {
    "data": (("partition",), "which has devices of its own: divide it with `fedprox.data.repartition`"),
    "solver": (("momentum", "nesterov", "weight_decay", "options"), "which has settings of its own"),
}
"""Settings that an object in the place of a part does not get, and why."""


def check_given(objects: Mapping[str, object | None], config: Config, callbacks: Any = ()) -> None:
    """Refuse names, classes and other objects in the place of parts, and settings that the objects do not get."""
    _check_kinds(objects, callbacks)
    _check_settings(objects, config)


def _check_kinds(objects: Mapping[str, object | None], callbacks: Any) -> None:
    if not isinstance(callbacks, Iterable) or not all(map(callable, callbacks)):
        raise ConfigError(f"`callbacks` must be a list of functions; got {short(callbacks)}")
    for part in _FUNCTIONS:
        given = objects.get(part)
        if given is not None and not callable(given):
            raise ConfigError(f"`{PLACES[part].argument}` must be a function; got {short(given)}")
    for part, (kind, words) in _KINDS.items():
        given = objects.get(part)
        if given is None or isinstance(given, kind):
            continue
        argument, key = PLACES[part]
        got, hint = type(given).__name__, _HINTS.get(part, "")
        if isinstance(given, type):
            got, hint = f"the class {given.__qualname__}", f": make an object of it, {given.__qualname__}(...)"
        elif isinstance(given, str):
            section, _, name = key.partition(".")
            got, hint = repr(given), f": a name belongs into the config, {{{section!r}: {{{name!r}: {given!r}}}}}"
        raise ConfigError(f"`{argument}` must be {words}; got {got}{hint}")
    solver = objects.get("solver")
    for one in solver.values() if isinstance(solver, Mapping) else [solver]:
        if one is not None and not callable(one) and not hasattr(one, "solve"):
            raise ConfigError(
                f"`solver` must be an object with `name` and `solve`, or a function of a device's number that returns "
                f"one; got {type(one).__name__}{_solver_hint(one)}"
            )
    if isinstance(solver, type):
        raise ConfigError(
            f"`solver` must be an object with `name` and `solve`; got the class "
            f"{solver.__qualname__}{_solver_hint(solver)}"
        )


def _check_settings(objects: Mapping[str, object | None], config: Config) -> None:
    for part, (keys, reason) in _UNUSED.items():
        section = getattr(config, part)
        for key in keys if objects.get(part) is not None else ():
            if value := getattr(section, key):
                raise ConfigError(
                    f"`{part}.{key}` must be left out with `{PLACES[part].argument}`, {reason}; got {short(value)}"
                )


def _solver_hint(given: object) -> str:
    """Return what to do about an object of another library, or a name, in place of a solver."""
    package = (given.__module__ if isinstance(given, type) else type(given).__module__).partition(".")[0]
    if package == "torch":
        return ": use `model, solver = fedprox.adapters.torch.from_torch(module, optimiser=torch.optim.SGD)`"
    if package == "optax":
        return ": use fedprox.solvers.from_optax"
    if isinstance(given, str):
        return f": a name belongs into the config, {{'solver': {{'name': {given!r}}}}}"
    return ""
