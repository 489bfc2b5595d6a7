"""Low priority for work in the background.

Linux may divide the processor between sessions first (`sched_autogroup_enabled`); a niceness then counts only within
its session, and a new session begins at 0. So a process that is alone in its session passes its niceness on to it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["lower_priority", "pass_priority_to_session"]

_SESSION = Path("/proc/self/autogroup")


def lower_priority() -> None:
    """Give this process, and those that it starts, the lowest priority; without effect on Windows."""
    if hasattr(os, "nice"):
        os.nice(19)


def pass_priority_to_session() -> None:
    """Give the session of this process its niceness, if it is low and the system knows priorities of sessions."""
    if hasattr(os, "nice") and (niceness := os.nice(0)) > 0 and _SESSION.exists():
        with contextlib.suppress(OSError):
            _SESSION.write_text(str(niceness), encoding="ascii")
