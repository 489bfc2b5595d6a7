"""How many rounds of a private federation were sent out, on disk before each of them.

The checkpoint lags behind by up to `checkpoint.every` rounds. Those are taken again after a crash, with other noise, so
that they cost privacy twice; and what was sent out cannot be taken back.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedprox.core.errors import RunFolderError
from fedprox.core.files import write_atomically

__all__ = ["record_release", "released_rounds"]

_FILE = "released.json"


def record_release(folder: Path, rounds: int) -> None:
    """Write down that so many rounds are being sent out, with this one."""
    write_atomically(folder / _FILE, json.dumps({"rounds": rounds}).encode())


def released_rounds(folder: Path, at_least: int) -> int:
    """Return how many rounds were sent out so far, of a run whose checkpoint is of round `at_least`."""
    file = folder / _FILE
    try:
        rounds = json.loads(file.read_text())["rounds"] if file.exists() else 0
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{file} must say how many rounds were sent out: {error}") from None
    if not isinstance(rounds, int) or rounds < at_least:
        raise RunFolderError(
            f"{file} must say how many rounds were sent out, at least {at_least}, the round of the checkpoint; "
            f"got {rounds!r}"
        )
    return rounds
