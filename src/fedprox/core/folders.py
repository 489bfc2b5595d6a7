"""Folders published atomically: made under another name, then exchanged with the older one in one step.

Linux and macOS can exchange two folders, so that one is there at every moment; elsewhere the older one is renamed
first. A folder that is being made has an unpredictable name and a locked file beside it. The leftovers of a process
that died are not locked, and are removed when the next folder is begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import IO

from fedprox.core.locks import can_lock, open_own, try_lock

__all__ = ["NewFolder", "exchange"]


class NewFolder:
    """A folder in the making: `path` until `publish` gives it its name or `discard` removes it."""

    def __init__(self, target: Path) -> None:
        self.target = target
        _remove_left_over(target)
        stem, self._lock = _locked(target)
        self._stem = stem
        self.path = Path(f"{stem}.new")
        try:
            self.path.mkdir()
        except BaseException:
            self.discard()
            raise

    def publish(self) -> None:
        """Give the folder its name; an older one under that name is replaced and removed."""
        before = Path(f"{self._stem}.old")
        if not self.target.exists():
            self.path.rename(self.target)
        elif not exchange(self.path, self.target):
            self.target.rename(before)
            self.path.rename(self.target)
        self.discard()

    def discard(self) -> None:
        """Remove what is not published."""
        for suffix in (".new", ".old"):
            shutil.rmtree(f"{self._stem}{suffix}", ignore_errors=True)
        self._lock.close()
        with contextlib.suppress(OSError):
            os.unlink(f"{self._stem}.lock")


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False where the system or its file system cannot."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return bool(library.renamex_np(os.fsencode(one), os.fsencode(other), _SWAP) == 0)
        return bool(library.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _SWAP) == 0)
    except (OSError, AttributeError, TypeError):  # no such library, or an older one
        return False


_HERE, _SWAP = -100, 2  # AT_FDCWD; RENAME_EXCHANGE on Linux, RENAME_SWAP on macOS


def _locked(target: Path) -> tuple[str, IO[bytes]]:
    """Return the beginning of unpredictable names beside a folder, and a locked file under it."""
    while True:
        stem = str(target.with_name(f".{target.name}.{secrets.token_hex(8)}"))
        file = Path(f"{stem}.lock").open("xb")  # noqa: SIM115 - it is open as long as the folder is being made
        # until it was locked, another process may have removed it as a leftover
        if try_lock(file) and Path(file.name).exists():
            return stem, file
        file.close()


def _remove_left_over(target: Path) -> None:
    """Remove what processes left behind that died while they made the folder `target`."""
    if not can_lock():
        return
    for folder in [path for path in target.parent.glob(".*") if _is_left_over(path, target.name)]:
        stem = folder.with_suffix("")
        lock = Path(f"{stem}.lock")
        with contextlib.suppress(OSError):
            if lock.exists():
                with open_own(lock) as file:
                    if not try_lock(file):
                        continue
                    lock.unlink(missing_ok=True)
            for suffix in (".new", ".old"):
                shutil.rmtree(f"{stem}{suffix}", ignore_errors=True)


def _is_left_over(path: Path, name: str) -> bool:
    head, _, token = path.stem.rpartition(".")
    is_token = len(token) == 16 and set(token) <= set("0123456789abcdef")
    return head == f".{name}" and is_token and path.suffix in (".new", ".old", ".lock")
