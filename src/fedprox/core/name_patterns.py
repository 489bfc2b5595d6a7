"""Patterns over the names of parameters: which leaves of a tree are meant.

A leaf's name is the path of keys joined by dots ("hidden.weight", `fedprox.core.trees.flatten_names`). A pattern is a
name, the name of a whole branch ("hidden"), or either with the wildcards of a shell (`*`, `?`, `[abc]`); `*` matches
dots too.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

__all__ = ["matches", "matches_any"]


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern means the parameter of that name.

    >>> [matches("hidden.weight", pattern) for pattern in ("hidden.weight", "hidden", "*.weight", "weight", "hid*")]
    [True, True, True, False, True]
    """
    if name == pattern or name.startswith(f"{pattern}."):
        return True
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns means the parameter of that name."""
    return any(matches(name, pattern) for pattern in patterns)
