"""Functions that return one model for the same sizes, so that compiled programs are found again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, wraps
from operator import index
from typing import Any, ParamSpec

from fedprox.core.errors import ConfigError
from fedprox.models.model import Model

__all__ = ["one_object"]

P = ParamSpec("P")


def one_object(build: Callable[P, Model]) -> Callable[P, Model]:
    """Let a function of sizes return the same object for the same sizes, and refuse sizes that are none.

    Parameters annotated as `int` must be integers >= 1; a list counts as the tuple of its numbers.

    >>> @one_object
    ... def build(shape: tuple[int, ...], classes: int) -> Model:
    ...     return Model("none", lambda key: None, lambda params, x, y: x, None)
    >>> build([28, 28], 10) is build((28, 28), classes=10)
    True
    >>> build((28, 28), 0)
    Traceback (most recent call last):
    fedprox.core.errors.ConfigError: `classes` must be an integer >= 1; got 0
    """
    signature = inspect.signature(build)
    build_once = lru_cache(maxsize=32)(build)

    @wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> Model:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = {name: _size(name, signature.parameters[name], each) for name, each in bound.arguments.items()}
        return build_once(**given)

    return built


def _size(name: str, parameter: inspect.Parameter, given: Any) -> Any:
    if parameter.annotation in (int, "int"):
        try:
            size = -1 if isinstance(given, bool) else index(given)
        except TypeError:
            size = -1
        if size < 1:
            raise ConfigError(f"`{name}` must be an integer >= 1; got {given!r}")
        return size
    return tuple(given) if isinstance(given, list) else given
