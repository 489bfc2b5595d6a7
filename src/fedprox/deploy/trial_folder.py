"""The folder of a trial: keys, logs and Flower's own files, under an unpredictable name in the temporary folder.

A file in it is locked as long as the trial's process lives. Of a trial that failed the logs stay, for its user to read.
A trial that was killed could not remove its keys; the next one does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedprox.core.locks import can_lock, open_own, try_lock

__all__ = ["KEYS", "remove_left_keys", "trial_folder"]

KEYS = "keys"
_PREFIX = "fedprox-trial-"


@contextlib.contextmanager
def trial_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed unless an error leaves the block."""
    remove_left_keys(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with (folder / "unlocked").open("xb") as lock:
        try_lock(lock)  # no other process knows the file yet
        (folder / "unlocked").rename(folder / "lock")
        yield folder
    shutil.rmtree(folder)


def remove_left_keys(place: Path) -> None:
    """Remove the keys of trials in `place` whose process was killed."""
    if not can_lock():
        return
    for folder in place.glob(f"{_PREFIX}*"):
        if not _is_own(folder):  # a link that others put there could lead anywhere
            continue
        with contextlib.suppress(OSError), open_own(folder / "lock") as lock:
            if try_lock(lock):
                shutil.rmtree(folder / KEYS, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())
