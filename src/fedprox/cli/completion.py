"""Shell completion: recipes, settings, methods and other names.

Bash takes `=` and `:` for ends of words, so that `-s method.name=fedd` arrives as three words, and only the last one is
replaced. `bash_words` joins them again for Typer, and prints the part after the break.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path

__all__ = [
    "bash_words",
    "complete_config",
    "complete_data",
    "complete_key",
    "complete_method",
    "complete_paper",
    "complete_population",
    "complete_setting",
    "complete_tracker",
    "join_words",
]

_BREAKS = ("=", ":")


def complete_config(incomplete: str) -> list[str]:
    """Return the recipes, and the config files here, that begin like this."""
    from fedprox.config.recipes import names

    files = [str(path) for path in Path().glob("*.toml")]
    return _beginning(incomplete, [*names(), *files])


def complete_setting(incomplete: str) -> list[str]:
    """Return the settings that begin like this; a single one with its default, or the values that it may have.

    >>> complete_setting("solver.ep")
    ['solver.epochs=', 'solver.epochs=20']
    >>> complete_setting("data.partition=d")
    ['data.partition=dirichlet']
    """
    from fedprox.config.builtin_parts import BUILTIN
    from fedprox.config.resolution import PLACES
    from fedprox.config.settings_list import section_settings

    settings = section_settings()
    names = [f"{place.field}={name}" for place in PLACES for name in BUILTIN[place.group]]
    values = [f"{each.key}={value}" for each in settings for value in each.values]
    defaults = {f"{each.key}=": each.default for each in settings}
    found = _beginning(incomplete, [*defaults, *names, *values])
    return _alone_with_default(found, defaults)


def complete_key(incomplete: str) -> list[str]:
    """Return the keys of settings, and the sections, that begin like this."""
    from fedprox.config.settings_list import section_settings

    keys = [each.key for each in section_settings()]
    return _beginning(incomplete, [*dict.fromkeys(key.partition(".")[0] for key in keys), *keys])


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin like this; after a colon the keys that the method takes, a single one with default.

    >>> complete_method("fedadam:beta")
    ['fedadam:beta1=', 'fedadam:beta2=']
    >>> complete_method("fedprox:mu=1,mu_s")
    ['fedprox:mu=1,mu_step=', 'fedprox:mu=1,mu_step=0.1']
    """
    from fedprox.config.builtin_parts import BUILTIN
    from fedprox.config.resolution import keys_of_section, takes_mu
    from fedprox.config.sections import MethodConfig
    from fedprox.config.toml import toml_value

    name, colon, settings = incomplete.partition(":")
    if not colon or name not in BUILTIN["methods"]:
        return _beginning(incomplete, BUILTIN["methods"])
    shared = {key: each.default for key, each in MethodConfig.model_fields.items() if key != "name" and takes_mu(name)}
    own = {key: each.default for key, each in keys_of_section("method", {"name": name}).items()}
    before = f"{name}:{settings[: settings.rfind(',') + 1]}"
    defaults = {f"{before}{key}=": toml_value(default) for key, default in {**shared, **own}.items()}
    return _alone_with_default(_beginning(incomplete, defaults), defaults)


def complete_population(incomplete: str) -> list[str]:
    """Return the names of data, the recipes and the config files here that begin like this."""
    from fedprox.config.builtin_parts import BUILTIN

    return list(dict.fromkeys([*_beginning(incomplete, BUILTIN["data"]), *complete_config(incomplete)]))


def complete_data(incomplete: str) -> list[str]:
    """Return the data sets to download that begin like this."""
    from fedprox.data.sources import SOURCES

    return _beginning(incomplete, SOURCES)


def complete_paper(incomplete: str) -> list[str]:
    """Return the tables and figures of the paper that begin like this."""
    return _beginning(incomplete, ["list", "all", "table1", *(f"figure{number}" for number in range(1, 13))])


def complete_tracker(incomplete: str) -> list[str]:
    """Return the trackers that begin like this."""
    return _beginning(incomplete, ["tensorboard", "mlflow", "wandb"])


def join_words(words: list[str], current: int) -> tuple[list[str], int, str]:
    """Join words that Bash has split.

    Returns the words, the place of the one that the cursor is at, and what of it lies before its last break.

    >>> join_words(["fedprox", "run", "iid", "-s", "method.name", "=", "fedd"], 6)
    (['fedprox', 'run', 'iid', '-s', 'method.name=fedd'], 4, 'method.name=')
    """
    joined: list[str] = []
    is_open = False
    for word in words[: current + 1]:
        is_break = word in _BREAKS
        if joined and (is_break or is_open):
            joined[-1] += word
        else:
            joined.append(word)
        is_open = is_break
    last = joined[-1] if joined else ""
    broken = is_open or (current > 0 and words[current - 1] in _BREAKS)
    before = last[: max(last.rfind(mark) for mark in _BREAKS) + 1] if broken else ""
    return joined, max(len(joined) - 1, 0), before


@contextlib.contextmanager
def bash_words(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Within the block, complete words of Bash as a whole; what Typer prints is cut to what follows the break."""
    words = environment.get("COMP_WORDS", "").split("\n")
    place = environment.get("COMP_CWORD", "")
    if environment.get("_FEDPROX_COMPLETE") != "complete_bash" or not place.isdecimal() or int(place) >= len(words):
        yield
        return
    joined, current, before = join_words(words, int(place))
    environment.update({"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(current)})
    found = io.StringIO()
    try:
        with contextlib.redirect_stdout(found):
            yield
    finally:
        lines = [line.removeprefix(before) for line in found.getvalue().splitlines()]
        sys.stdout.write("".join(f"{line}\n" for line in lines if line))


def _alone_with_default(found: list[str], defaults: Mapping[str, str]) -> list[str]:
    """Return what was found; beside its default a single key is not complete, so that the shell adds no space to it."""
    return [*found, found[0] + defaults[found[0]]] if len(found) == 1 and found[0] in defaults else found


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
