"""The keys that a part adds to its section: the keyword parameters of its callable, with their types and defaults.

A parameter's annotation is its rule. One with a `Field` of `fedprox.config.fields` (`Positive`, `Count`, …) has its own
words; a plain `float`, `int`, `bool`, `str` or `Literal` is enough. Without one the type of the default is used.

>>> def half(strength: float = 0.5, *, seed=0): ...
>>> keys = part_keys("methods", half)
>>> list(keys), keys["strength"].default
(['strength'], 0.5)
>>> keys["strength"].checked("method.strength", "x")
Traceback (most recent call last):
...
fedprox.core.errors.ConfigError: `method.strength` must be a number; got 'x'
"""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedprox.config.fields import broken_rule
from fedprox.core.errors import ConfigError

__all__ = ["GROUPS", "REQUIRED", "Group", "Key", "part_keys", "passed_always", "returns_part", "rule_in_words"]

T = TypeVar("T")

REQUIRED: Any = inspect.Parameter.empty
"""The default of a key that has none."""


@dataclass(frozen=True)
class Group:
    """The arguments that the callables of a group receive besides their keys.

    Attributes:
      first: the names of the first arguments.
      is_function: whether the part itself is a function of `first`, not the result of a callable.
      always: what is also passed to a callable with a parameter of that name.
      also: what may be given instead of a part's name, in words.
    """

    first: tuple[str, ...] = ()
    is_function: bool = False
    always: frozenset[str] = frozenset({"seed"})
    also: str = ""


GROUPS: Mapping[str, Group] = {
    "data": Group(always=frozenset({"compat", "config"})),  # seed is a key: data.seed
    "models": Group(first=("population",), always=frozenset({"seed", "config"}), also="'' for the paper's choice"),
    "methods": Group(),
    "mu": Group(always=frozenset({"seed", "mu", "learning_rate", "share"}), also="a number >= 0"),
    "solvers": Group(always=frozenset({"seed", "config"})),
    "schedules": Group(first=("learning_rate", "round", "rounds"), is_function=True),
    "samplers": Group(first=("view",), is_function=True),
    "systems": Group(first=("view",), is_function=True),
    "metrics": Group(first=("labels", "predictions"), is_function=True),
    "merge": Group(),
    "engines": Group(first=("run",)),
    "stopping": Group(first=("history",), is_function=True),
}


@dataclass(frozen=True)
class Key:
    """A key of a part: its name, its type as an annotation, and its default."""

    name: str
    annotation: Any
    default: Any = field(default=REQUIRED)

    def checked(self, place: str, value: Any) -> Any:
        """Return the value as the callable expects it; raises ConfigError for an invalid one."""
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"`{place}` must be a finite number; got {value!r}")
        adapter = _adapter(self.annotation)
        if adapter is None:
            return value
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            rule = broken_rule(error.errors()[0], rule_in_words(self.annotation))
            raise ConfigError(f"`{place}` must be {rule}; got {value!r}") from None


def returns_part(group: str, value: Any) -> bool:
    """Return whether an object is a callable that returns the part, and not the part itself."""
    if inspect.isclass(value):
        return True
    if not (inspect.isroutine(value) or isinstance(value, functools.partial) or hasattr(value, "__wrapped__")):
        return False
    kind = GROUPS[group]
    return not kind.is_function or _leading(value) < len(kind.first)


def part_keys(group: str, value: Any) -> dict[str, Key]:
    """Return the keys of the object behind a name; a part that is an object, not a callable, has none."""
    kind = GROUPS[group]
    is_called = returns_part(group, value)
    if not is_called and not (kind.is_function and inspect.isroutine(value)):
        return {}
    hidden = {"name", *kind.always, *getattr(value, "not_keys", ())}
    count = 0 if is_called and kind.is_function else len(kind.first)
    return {
        each.name: Key(each.name, _annotation(value, each), each.default)
        for each in _parameters(value)[count:]
        if each.name not in hidden
    }


def passed_always(group: str, value: Any) -> list[str]:
    """Return the parameters of a callable that are passed to it but are not keys."""
    return [each.name for each in _parameters(value) if each.name in GROUPS[group].always]


def _remembered(inspect_part: Callable[[Any], T]) -> Callable[[Any], T]:
    """Inspect a part once: samplers and schedules are built in every round, and a sweep has many configs."""
    remembered = functools.lru_cache(maxsize=256)(inspect_part)

    @functools.wraps(inspect_part)
    def inspected(value: Any) -> T:
        try:
            hash(value)
        except TypeError:
            return inspect_part(value)
        return remembered(value)

    return inspected


@_remembered
def _parameters(value: Any) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature
        return []
    return [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _leading(value: Any) -> int:
    """Return how many parameters a function is called with: the leading ones that have no default."""
    named = [each.kind is not each.KEYWORD_ONLY and each.default is REQUIRED for each in _parameters(value)]
    return named.index(False) if False in named else len(named)


def _annotation(value: Any, parameter: inspect.Parameter) -> Any:
    written = parameter.annotation
    if isinstance(written, str):
        written = _hints(value).get(parameter.name, REQUIRED)
    if written is not REQUIRED:
        return written
    return type(parameter.default) if isinstance(parameter.default, (bool, int, float, str)) else Any


@_remembered
def _hints(value: Any) -> dict[str, Any]:
    """Return the annotations of a callable as types; those that cannot be found count as missing."""
    inner = inspect.unwrap(value.func if isinstance(value, functools.partial) else value)
    owners = [inner, inner.__init__] if inspect.isclass(inner) else [inner]
    found: dict[str, Any] = {}
    for owner in owners:
        try:
            found = typing.get_type_hints(owner, include_extras=True) | found
        except (NameError, TypeError, AttributeError):
            continue
    return found


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """Return the validator of a value, strict where TOML has the type; None for a type that no setting can have."""
    plain = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    from_toml = {Path, tuple, set, frozenset}  # which TOML writes as text and lists
    is_loose = plain in from_toml or typing.get_origin(plain) in from_toml or Path in typing.get_args(plain)
    try:
        return TypeAdapter(annotation, config=ConfigDict(strict=not is_loose))
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None


def rule_in_words(annotation: Any) -> str:
    """Return the rule of an annotation in words."""
    if typing.get_origin(annotation) is Annotated:
        plain, *more = typing.get_args(annotation)
        described = [each.description for each in more if isinstance(each, FieldInfo) and each.description]
        return described[0] if described else rule_in_words(plain)
    if typing.get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(annotation)))}"
    words = {float: "a number", int: "an integer", bool: "true or false", str: "text", Path: "text"}
    return words.get(annotation, f"of the type {getattr(annotation, '__name__', annotation)}")
