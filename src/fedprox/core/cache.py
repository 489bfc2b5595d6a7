"""The folder in which compiled programs are kept between runs, where it can be written."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import platformdirs

__all__ = ["CacheWarning", "cache_folder"]


class CacheWarning(UserWarning):
    """Compiled programs are not kept, so every start compiles them again."""


def cache_folder() -> Path | None:
    """Return the folder for compiled programs, or None, with a warning, where it cannot be written."""
    folder = platformdirs.user_cache_path("fedprox") / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if not reason:
        return folder
    warnings.warn(
        f"compiled programs are not kept, since {folder} cannot be written ({reason}); set XDG_CACHE_HOME to a folder "
        "that can",
        CacheWarning,
        stacklevel=2,
    )
    return None
