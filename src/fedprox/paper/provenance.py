"""Where a file comes from: the commit of the code, the machine, the versions of libraries."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np

from fedprox import __version__
from fedprox.core.machine import usable_cores

__all__ = ["commit", "file_record", "machine", "versions"]


def file_record(name: str) -> dict[str, Any]:
    """Return what is written beside a file: its name, when and where it was made, and with which code."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"name": name, "commit": commit(), "date": now, "machine": machine(), "versions": versions()}


def versions() -> dict[str, str]:
    """Return the versions of this software and of what figures depend on."""
    return {
        "fedprox": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "matplotlib": matplotlib.__version__,
    }


def commit() -> str | None:
    """Return the commit of the code, marked with a plus where files have changed since; None outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str | None:
        command = [git, "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    head = ask("rev-parse", "HEAD")
    if not head:
        return None
    return head + ("+" if ask("status", "--porcelain", "--untracked-files=no", "--", ".") else "")


def machine() -> dict[str, Any]:
    """Return what the runs ran on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": usable_cores(),
        "backend": jax.default_backend(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
