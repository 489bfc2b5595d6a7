"""Child processes that end with the process that started them, however that one ends.

Linux sends a signal to a child whose parent dies (`prctl`, PR_SET_PDEATHSIG); other systems have nothing like it, and
there a child of a killed process stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from typing import Any

__all__ = ["end_with_parent"]

_library: Any = None
if sys.platform == "linux":
    with contextlib.suppress(OSError):
        _library = ctypes.CDLL(None)
_PARENT_DEATH_SIGNAL = 1


def end_with_parent() -> None:
    """Have the system terminate this process when its parent dies; for `preexec_fn` of `subprocess.Popen`."""
    if _library is not None:
        _library.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM))
