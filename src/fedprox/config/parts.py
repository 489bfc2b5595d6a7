"""Parts by name: what a config names is a part of the library, of a module, or of an installed package.

A name is looked up in this order:

1. a built-in name, such as "fedprox" (`fedprox.config.builtin_parts`);
2. "module:object", such as "mine:Half", from a module that Python can import;
3. an installed entry point of the group "fedprox.GROUP", such as "fedprox.methods".

The object is the part itself, or a callable that returns it; the callable's keyword parameters are the keys that the
section takes beside the name (`fedprox.config.part_keys`). Some parts are functions themselves: their first parameters
are what they are called with, and the others are the keys.

>>> find_part("methods", "feddyn", "method.name").__name__
'FedDyn'
>>> find_part("methods", "fedpox", "method.name")
Traceback (most recent call last):
...
fedprox.core.errors.ConfigError: `method.name` must be one of fedavg, fedprox, feddane, scaffold, fednova, feddyn, \
fedavgm, fedadam, fedyogi, fedexp, fedexprox, ditto, pfedme, qffl, agnostic, scaffnew, fedadmm, sdane, module:object; \
got 'fedpox'; did you mean `fedprox`?
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import PurePath
from typing import Any

from fedprox.config.builtin_parts import BUILTIN, FILE_KINDS
from fedprox.config.fields import PartSection
from fedprox.config.part_keys import GROUPS, REQUIRED, Key, part_keys, passed_always, returns_part
from fedprox.config.part_search import add_current_folder, is_command
from fedprox.core.errors import ConfigError, nearest
from fedprox.core.extras import MissingExtraError, extra_of_module
from fedprox.core.own_code import own_code

__all__ = ["build_part", "builtin_names", "capability", "check_kind", "find_part", "is_builtin"]


def builtin_names(group: str) -> tuple[str, ...]:
    """Return the names of the library's own parts of a group.

    >>> builtin_names("mu")
    ('adaptive', 'auto', 'drift')
    """
    return tuple(BUILTIN[group])


def is_builtin(group: str, name: str) -> bool:
    """Return whether a name stands for one of the library's own parts."""
    return name in BUILTIN[group]


def find_part(group: str, name: str, field: str) -> Any:
    """Return the object behind a name; `field` is the config key that names it, for the error message."""
    if name in BUILTIN[group]:
        return _builtin(BUILTIN[group][name], field)
    if ":" in name:
        add_current_folder()
        return _imported(name, field)
    installed = _installed(group, tuple(sys.path))
    found = [point for point in installed if point.name == name]
    if len(found) > 1:
        raise ConfigError(
            f"`{field}` must name one part, but several packages install {name!r} for fedprox.{group} "
            f"({', '.join(point.value for point in found)}); got {name!r}"
        )
    if not found:
        known = [*BUILTIN[group], *dict.fromkeys(point.name for point in installed)]
        rule = f"one of {', '.join([*known, 'module:object'])}" if known else "module:object"
        rule += f" or {GROUPS[group].also}" if GROUPS[group].also else ""
        hint = _file_hint(group, name) or nearest(name, known) or _dotted_hint(name)
        raise ConfigError(f"`{field}` must be {rule}; got {name!r}{hint}")
    return _imported(found[0].value, field)


def build_part(
    group: str,
    field: str,
    section: PartSection,
    given: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Return the part that `field` of a section names.

    Args:
      group, field: as in `find_part`.
      section: its given settings that are keys of the part's callable are passed to it.
      given: what the callable also receives: its first arguments, and `seed` and others if it has a parameter of that
        name.
      settings: further settings, as if they were the section's.
    """
    name = getattr(section, field.partition(".")[2])
    value, given = find_part(group, name, field), given or {}
    if not returns_part(group, value) and not GROUPS[group].is_function:
        return value
    arguments = _settings(part_keys(group, value), section, settings or {})
    arguments |= {key: given[key] for key in passed_always(group, value) if key in given}
    if not returns_part(group, value):
        return functools.partial(value, **arguments) if arguments else value
    first = [] if GROUPS[group].is_function else [given[key] for key in GROUPS[group].first]
    if name in BUILTIN[group]:
        return value(*first, **arguments)
    _check_call(value, first, arguments, field, name, group)
    with own_code(f"`{field}` = {name!r}", ConfigError):
        part = value(*first, **arguments)
    if GROUPS[group].is_function and not callable(part):
        first_ones = ", ".join(GROUPS[group].first)
        raise ConfigError(
            f"`{field}` must name a function of {first_ones}, or a callable that returns one; got {name!r}, which "
            f"gives {type(part).__name__}"
        )
    return part


def _check_call(
    value: Any, first: Sequence[Any], arguments: Mapping[str, Any], field: str, name: str, group: str
) -> None:
    """Refuse a callable that needs more than its keys, or does not take its first arguments."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # of a callable that is compiled
        return
    try:
        signature.bind(*first, **arguments)
    except TypeError as error:
        if first and "too many positional" in str(error):
            raise ConfigError(
                f"`{field}` must name a callable whose first arguments are {', '.join(GROUPS[group].first)}; got "
                f"{name!r}"
            ) from None
        if inspect.isclass(value) and is_dataclass(value) and "__dataclass_fields__" not in vars(value):
            raise ConfigError(
                f"`{field}` must name a dataclass; got {name!r}, a class that only inherits from one ({error}): write "
                f"`@dataclass(frozen=True)` above it, with a value for each field"
            ) from None
        raise ConfigError(
            f"`{field}` must name a part whose arguments are settings or have defaults ({error}: give it a default); "
            f"got {name!r}"
        ) from None


def _settings(keys: Mapping[str, Key], section: PartSection, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are keys of a part's callable."""
    if not keys:  # true of most parts that are built in every round
        return {}
    values = {**section.given(), **settings}
    arguments = {key: values[key] for key in keys if key in values}
    for key in keys.values():
        if key.default is REQUIRED and key.name not in arguments and hasattr(section, key.name):
            arguments[key.name] = getattr(section, key.name)
    return arguments


def check_kind(
    part: Any,
    kind: type | tuple[type, ...],
    words: str,
    field: str,
    name: str,
    hint: Callable[[Any], str] = lambda part: "",
) -> None:
    """Refuse an object of the wrong kind; `hint(part)` says what to do about it."""
    if not isinstance(part, kind):
        raise ConfigError(
            f"`{field}` must name {words}, or a callable that returns one; got {name!r}, which gives "
            f"{type(part).__name__}{hint(part)}"
        )


def capability(value: Any, name: str, default: Any) -> Any:
    """Return what a part's class declares, such as `proximal`; `default` where a function hides it."""
    owner = getattr(value, "__self__", value)
    return getattr(owner, name, default) if not callable(owner) or isinstance(owner, type) else default


def _file_hint(group: str, name: str) -> str:
    """Return the hint for a file that was given in place of a data set's name."""
    kind = FILE_KINDS.get(PurePath(name.removesuffix(".gz")).suffix) if group == "data" else None
    return f": to read the file, set `data.name` to {kind!r} and `data.path` to {name!r}" if kind else ""


def _module_of(file: str) -> str:
    """Return the name of the module in a file: below the current folder with its folders, elsewhere without them.

    >>> _module_of("./mine.py"), _module_of("parts/mine.py"), _module_of("../mine.py")
    ('mine', 'parts.mine', 'mine')
    """
    path = PurePath(os.path.relpath(file)).with_suffix("")
    return path.name if ".." in path.parts else ".".join(path.parts)


def _dotted_hint(name: str) -> str:
    """Return the hint for an object of a module that was given with a dot in place of the colon, and for a file."""
    if name.endswith(".py"):
        return f"; an object of a file is given as `{_module_of(name)}:OBJECT`"
    module, dot, part = name.rpartition(".")
    return f"; did you mean `{module}:{part}`?" if dot and module and part.isidentifier() else ""


@lru_cache(maxsize=256)  # some are asked for in every round
def _builtin(path: str, field: str) -> Any:
    return _imported(path, field)


def _imported(path: str, field: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except MissingExtraError:  # its sentence says what to install
        raise
    except (Exception, SystemExit) as error:  # whatever a module's own code raises
        if isinstance(error, ModuleNotFoundError) and (extra := extra_of_module(error.name or "")):
            raise MissingExtraError(f"`{field}` = {path!r}", extra) from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        is_missing = isinstance(error, ModuleNotFoundError) and module.split(".")[0] == (error.name or "").split(".")[0]
        hint = "; start the command in the folder that has it" if is_missing and is_command() else ""
        if module.endswith(".py"):
            hint = f"; did you mean `{_module_of(module)}:{name}`?"
        raise ConfigError(f"`{field}` must name a module that can be imported ({reason}); got {path!r}{hint}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            hint = nearest(part, [each for each in dir(found) if not each.startswith("_")])
            raise ConfigError(f"`{field}` must name an object of {module!r}, which has no {part!r}; got {path!r}{hint}")
        found = getattr(found, part)
    return found


@lru_cache(maxsize=64)
def _installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, each once; cached as long as the search path `path` is the same."""
    unique = {(point.name, point.value): point for point in entry_points(group=f"fedprox.{group}")}
    return tuple(unique.values())
