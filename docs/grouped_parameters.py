"""Gives every parameter a line of its own in the reference where a docstring describes several in one line.

`x, y: the names of the columns` documents two parameters. The reference looks parameters up by name, and would show
neither type nor default for such a line, but call it required.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(?P<indent>[ ]*)Args:\n(?P<lines>(?:(?P=indent)[ ]+.*\n?)+)", re.MULTILINE)
_GROUP = re.compile(r"^(?P<indent>[ ]+)(?P<names>\w+(?:, \w+)+): (?P<text>.*(?:\n(?P=indent)[ ]+.*)*)", re.MULTILINE)


class GroupedParameters(griffe.Extension):
    """Repeats the description of several parameters for each of them."""

    def on_function_instance(self, *, func: Any, **others: Any) -> None:
        """Rewrite the docstring of a function that has just been read."""
        if func.docstring is not None:
            func.docstring.value = ungrouped(func.docstring.value)


def ungrouped(docstring: str) -> str:
    r"""Return a docstring in which each parameter has its own line.

    >>> print(ungrouped("Read.\n\nArgs:\n  x, y: names.\n  seed: a number.\n"))
    Read.
    <BLANKLINE>
    Args:
      x: names.
      y: names.
      seed: a number.
    <BLANKLINE>
    """
    return _SECTION.sub(lambda section: _GROUP.sub(_repeated, section[0]), docstring)


def _repeated(group: re.Match[str]) -> str:
    return "\n".join(f"{group['indent']}{name}: {group['text']}" for name in group["names"].split(", "))
