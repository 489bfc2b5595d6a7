"""Locks on open files, held until the file is closed or the process ends, however it ends.

POSIX systems have `flock`, Windows has byte ranges. Where there is neither, every lock is granted, and a second process
that writes to the same folder is not detected.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import ModuleType
from typing import IO, Any

__all__ = ["can_lock", "is_locked", "open_own", "try_lock"]

posix: ModuleType | None = None
windows: Any = None
with contextlib.suppress(ImportError):
    import fcntl as posix
if posix is None:
    with contextlib.suppress(ImportError):
        import msvcrt as windows

_BYTE = 1 << 30  # Windows does not let others read what is locked, so this lies beyond the end of the file


def can_lock() -> bool:
    """Return whether this system has locks."""
    return posix is not None or windows is not None


def open_own(path: Path) -> IO[bytes]:
    """Open a regular file of this user in a shared folder; a pipe or link put there by others does not block."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
        os.close(number)
        raise PermissionError(f"{path} is not a file of our own")
    return os.fdopen(number, "rb")


def try_lock(file: IO[bytes]) -> bool:
    """Lock an open file for this process alone; return False at once where another process has locked it."""
    try:
        if posix is not None:
            posix.flock(file, posix.LOCK_EX | posix.LOCK_NB)
        elif windows is not None:
            file.seek(_BYTE)
            windows.locking(file.fileno(), windows.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a process has locked the file at `path`; a file that is not there is not locked."""
    try:
        with path.open("rb") as file:
            if posix is not None:
                posix.flock(file, posix.LOCK_SH | posix.LOCK_NB)
            elif windows is not None:
                return not try_lock(file)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
