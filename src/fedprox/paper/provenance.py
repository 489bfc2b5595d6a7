"""Where a figure comes from: commit, machine, versions, date, scale, and each run with the hash of its config."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np

from fedprox import __version__
from fedprox.core.machine import usable_cores
from fedprox.paper.runs import Setting, config_hash
from fedprox.runs.reader import SavedRun

__all__ = ["commit", "machine", "provenance"]


def provenance(name: str, setting: Setting, runs: Iterable[SavedRun], notes: Iterable[str]) -> dict[str, Any]:
    """Return the record that is written beside a figure."""
    return {
        "name": name,
        "scale": setting.scale.name,
        "notes": list(notes),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {
            "fedprox": __version__,
            "python": platform.python_version(),
            "jax": jax.__version__,
            "numpy": np.__version__,
            "matplotlib": matplotlib.__version__,
        },
        "runs": [
            {
                "folder": run.path.name,
                "config": config_hash(run.config),
                "seed": run.seed,
                "seconds": round((run.summary or {})["seconds"], 1),
            }
            for run in {run.path: run for run in runs}.values()
        ],
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
