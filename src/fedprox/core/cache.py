"""The folder that keeps compiled programs between runs, if it is writable."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import warnings
from pathlib import Path

import platformdirs

__all__ = ["CacheWarning", "KeptPrograms", "cache_folder"]


class CacheWarning(UserWarning):
    """Compiled programs are not kept, so every start compiles them again."""


def cache_folder() -> Path | None:
    """Return the folder for compiled programs, or None, with a warning, if it is not writable."""
    folder = platformdirs.user_cache_path("fedprox") / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # what is in it is run
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if not reason:
        return folder
    warnings.warn(
        f"compiled programs are not cached, since {folder} cannot be written ({reason}); set XDG_CACHE_HOME to a "
        "writable folder",
        CacheWarning,
        stacklevel=2,
    )
    return None


class KeptPrograms:
    """Compiled programs in a folder, each with a digest and written atomically (under another name, then renamed).

    An entry that does not match its digest is removed, and the program is compiled again. The class has the two methods
    that JAX expects of a cache.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder

    def get(self, key: str) -> bytes | None:
        """Return the program kept under a key, or None."""
        file = self._path / f"{key}{_SUFFIX}"
        try:
            content = file.read_bytes()
        except OSError:
            return None
        digest, program = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(key.encode() + program).digest() == digest:
            return program
        with contextlib.suppress(OSError):
            file.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Store a program; if that fails, as on a full disk, nothing is left behind."""
        temporary = self._path / f".{secrets.token_hex(8)}.new"
        try:
            temporary.write_bytes(hashlib.sha256(key.encode() + value).digest() + value)
            temporary.replace(self._path / f"{key}{_SUFFIX}")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()


_SUFFIX, _DIGEST = ".program", 32
