"""Python errors in the logs of Flower's processes, which write much else."""

from __future__ import annotations

import re

__all__ = ["last_error"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = "Traceback (most recent call last):"


def last_error(log: str) -> str | None:
    """Return the last traceback of a log, from its first line to the error, or None.

    >>> lines = [
    ...     "INFO : start",
    ...     "Traceback (most recent call last):",
    ...     "  File ...",
    ...     "ValueError: no data",
    ...     "INFO : end",
    ... ]
    >>> last_error(chr(10).join(lines)).splitlines()[-1]
    'ValueError: no data'
    >>> last_error("INFO : all is well") is None
    True
    """
    lines = _COLOURS.sub("", log).splitlines()
    begins = [at for at, line in enumerate(lines) if line.strip().endswith(_TRACEBACK)]
    if not begins:
        return None
    first = begins[-1]
    indent = len(lines[first]) - len(lines[first].lstrip())
    for last in range(first + 1, len(lines)):
        line = lines[last]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            return "\n".join([_TRACEBACK, *lines[first + 1 : last + 1]])
    return "\n".join([_TRACEBACK, *lines[first + 1 :]])
