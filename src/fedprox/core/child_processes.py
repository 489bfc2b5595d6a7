"""Child processes that end with the process that started them, however it ends.

Linux sends a signal to a child whose parent dies (`prctl`, PR_SET_PDEATHSIG); other systems have no equivalent, and the
child of a killed process keeps running there. The child requests the signal itself, before it executes the command: a
function between fork and exec (`preexec_fn`) is not safe in a process with threads, such as those of JAX.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["ending_with_parent"]

_ASK_AND_BECOME = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def ending_with_parent(command: Sequence[str], parent: int) -> list[str]:
    """Return a command that is terminated when the process `parent`, which starts it, dies.

    >>> ending_with_parent(["/bin/true"], 1)[-1]
    '/bin/true'
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-c", _ASK_AND_BECOME, str(parent), *command]
