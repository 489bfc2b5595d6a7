"""Where modules of "module:object" parts are searched.

The command line searches the current folder last, and only once a config names such a part, so that no file in the
folder can take the place of an installed module. Processes that a run starts elsewhere receive the same search path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

__all__ = ["add_current_folder", "add_folders", "allow_current_folder", "folders", "is_command"]

_allowed: list[str] = []  # the current folder of a command, which is searched last; like sys.path, one per process


def allow_current_folder() -> None:
    """Let parts of this process be found in the current folder, as commands do."""
    _allowed[:] = [os.getcwd()]


def is_command() -> bool:
    """Return whether parts of this process are found in the current folder."""
    return bool(_allowed)


def add_current_folder() -> None:
    """Search the current folder from now on, after everything else, where that is allowed."""
    add_folders(_allowed)


def add_folders(more: Iterable[str]) -> None:
    """Search these folders too, after those that are searched already."""
    sys.path += [folder for folder in more if folder not in sys.path]


def folders() -> list[str]:
    """Return the search path of this process, for another process that has to find the same modules."""
    return [os.path.abspath(folder) for folder in [*sys.path, *_allowed]]
