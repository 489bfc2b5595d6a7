"""A message for the case that this process is ended before it can print one.

Ray ends the process that uses it at once, from within, when it finds that the store of its node is gone. No Python
handler runs then. So a shell waits at the other end of a pipe: when the pipe ends without a closing line, it prints the
message.
"""

from __future__ import annotations

import contextlib
import subprocess

__all__ = ["LastWords"]

# interrupts are left to the watched process
_SCRIPT = """trap "" INT TERM; read -r goodbye || printf '%s\\n' "$0" >&2"""


class LastWords:
    """Prints `sentence` on standard error if this process ends before `close`."""

    def __init__(self, sentence: str) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # a message is not worth failing a run
            self._shell = subprocess.Popen(["/bin/sh", "-c", _SCRIPT, sentence], stdin=subprocess.PIPE)

    def close(self) -> None:
        """Send the closing line, so that nothing is printed."""
        if self._shell is not None:
            with contextlib.suppress(OSError):  # the shell was killed
                self._shell.communicate(b"goodbye\n")
