"""Lets the reference show the examples in docstrings (lines after >>>) as code, wherever in a docstring they stand."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n[ ]*\S.*)*", re.MULTILINE)


class FencedExamples(griffe.Extension):
    """Puts a fence around every example."""

    def on_instance(self, *, obj: Any, **others: Any) -> None:
        """Rewrite the docstring of an object that has just been read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    indent = example["indent"]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"
