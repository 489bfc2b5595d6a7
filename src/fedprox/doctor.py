"""Checks of an installation: versions, devices, cores, cache and extras; what is wrong, and how to fix it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fedprox import __version__
from fedprox.core.extras import EXTRAS
from fedprox.core.machine import free_memory, load_average, usable_cores

__all__ = ["Finding", "examine"]

_NEEDED = (
    "jax",
    "jaxlib",
    "numpy",
    "safetensors",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "pandas",
    "plotly",
    "pooch",
)


@dataclass(frozen=True)
class Finding:
    """The result of one check. `level` is "ok", "note" (something optional is missing) or "wrong"."""

    what: str
    level: str
    text: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Run all checks."""
    return [_python(), *_packages(), _jax(), _cores(), _cache(), _memory(), _disk(), *_extras()]


def _python() -> Finding:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, fedprox {__version__}"
    return Finding("python", "ok", text)


def _packages() -> list[Finding]:
    versions, missing = [], []
    for name in _NEEDED:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    findings = [Finding("packages", "ok", ", ".join(versions))]
    if missing:
        remedy = f"pip install {' '.join(missing)}"
        findings.append(Finding("packages", "wrong", f"not installed: {', '.join(missing)}", remedy))
    return findings


def _jax() -> Finding:
    """Compile and run a program: the most frequent fault is an accelerator's driver."""
    try:
        import jax

        devices = ", ".join(str(device) for device in jax.devices())
        if float(jax.jit(lambda x: x + 1)(1.0)) != 2.0:
            return Finding("jax", "wrong", f"a compiled sum on {devices} is not right", "reinstall jax and jaxlib")
    except Exception as error:  # whatever the driver, the plugin or the compiler raises is the finding
        remedy = "run with JAX_PLATFORMS=cpu, or reinstall jax for this machine"
        return Finding("jax", "wrong", f"JAX cannot run a program: {type(error).__name__}: {error}", remedy)
    return Finding("jax", "ok", f"{jax.default_backend()}: {devices}")


def _cores() -> Finding:
    usable, there = usable_cores(), os.cpu_count() or 1
    text = f"{usable} of {there} cores can be used"
    load = load_average()
    if load is not None and load > 1.5 * there:
        remedy = "timings are unreliable until the load drops"
        return Finding("cores", "note", f"{text}; the machine is busy (load {load:.1f})", remedy)
    return Finding("cores", "ok", text)


def _cache() -> Finding:
    folder = platformdirs.user_cache_path("fedprox")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = f"make {folder} writable, or set XDG_CACHE_HOME to a folder that is"
        return Finding("cache", "wrong", f"{folder} cannot be written: {error.strerror}", remedy)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Finding("cache", "ok", f"{folder}, {size / 1e6:.0f} MB")


def _memory() -> Finding:
    free = free_memory()
    return Finding("memory", "ok", "this system does not report it" if free is None else f"{free:.1f} GB free")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    if free < 0.5:
        return Finding("disk", "wrong", f"{free:.2f} GB free in {Path.cwd()}", "free disk space before a long run")
    return Finding("disk", "ok", f"{free:.1f} GB free here")


def _extras() -> list[Finding]:
    findings = []
    for name, extra in EXTRAS.items():
        if importlib.util.find_spec(extra.module) is None:
            remedy = f"pip install 'fedprox[{name}]'"
            findings.append(Finding(name, "note", f"not installed ({extra.purpose})", remedy))
        else:
            findings.append(Finding(name, "ok", f"installed ({extra.purpose})"))
    return findings
