"""A sentence for the case that this process ends without a chance to say anything.

Ray ends the process that uses it at once, from within, when it finds that the store of its node is gone. No handler
of Python's runs then. So a shell waits at the other end of a pipe: when the pipe ends without a goodbye, it
says the sentence.
"""

from __future__ import annotations

import contextlib
import subprocess

__all__ = ["LastWords"]

# interrupts are for the process that is watched, which decides what comes of them
_SCRIPT = """trap "" INT TERM; read -r goodbye || printf '%s\\n' "$0" >&2"""


class LastWords:
    """Says `sentence` on standard error if this process ends before `close`."""

    def __init__(self, sentence: str) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # a sentence is not worth a run
            self._shell = subprocess.Popen(["/bin/sh", "-c", _SCRIPT, sentence], stdin=subprocess.PIPE)

    def close(self) -> None:
        """Say goodbye: there is nothing to say."""
        if self._shell is not None:
            with contextlib.suppress(OSError):  # the shell was killed
                self._shell.communicate(b"goodbye\n")
