"""How many rounds of a private federation were sent out, on disk before each of them.

The checkpoint lags behind by up to `checkpoint.every` rounds. Those are taken again after a crash, with other noise, so
that they cost privacy twice; and what was sent out cannot be revoked.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedprox.core.errors import RunFolderError
from fedprox.core.files import write_atomically

__all__ = ["Releases"]

_FILE = "released.json"


class Releases:
    """The count of a run's releases, in its folder.

    Args:
      folder: the run folder.
      at_least: the round of the checkpoint that the run goes back to, the least number that has been sent out.
    """

    def __init__(self, folder: Path, at_least: int) -> None:
        self._file = folder / _FILE
        self.rounds = _read(self._file, at_least)

    def add(self) -> None:
        """Count one more round, which is about to be sent out."""
        self.rounds += 1
        write_atomically(self._file, json.dumps({"rounds": self.rounds}).encode())


def _read(file: Path, at_least: int) -> int:
    try:
        rounds = json.loads(file.read_text())["rounds"] if file.exists() else 0
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{file} must hold the number of rounds sent out: {error}") from None
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < at_least:
        raise RunFolderError(
            f"{file} must hold the number of rounds sent out, at least {at_least}, the round of the checkpoint; "
            f"got {rounds!r}"
        )
    return rounds
