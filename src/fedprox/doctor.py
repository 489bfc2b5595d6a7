"""Whether everything is in place: versions, devices, cores, cache and extras; what is wrong, and what to do."""

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

__all__ = ["Finding", "examine"]

# what each extra of the package is for, by the module that shows it is there
_EXTRAS = {
    "flower": ("flwr", "fedprox deploy"),
    "frames": ("polars", "data frames and Parquet"),
    "mlflow": ("mlflow", "fedprox run --track mlflow"),
    "ray": ("ray", "simulation on a Ray cluster"),
    "report": ("plotly", "fedprox report"),
    "tensorboard": ("tensorboard", "fedprox run --track tensorboard"),
    "torch": ("torch", "PyTorch models and solvers"),
    "tune": ("optuna", "fedprox tune --trials"),
    "wandb": ("wandb", "fedprox run --track wandb"),
}
_NEEDED = ("jax", "jaxlib", "numpy", "safetensors", "pydantic", "typer", "rich", "matplotlib", "pooch")


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `level` is "ok", "note" (something optional is not there) or "wrong"."""

    what: str
    level: str
    text: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything."""
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
    """Compile and run a program: what most often does not work is the accelerator's driver."""
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
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable} of {there} cores may be used"
    load = os.getloadavg()[0]
    if load > 1.5 * there:
        remedy = "timings are not to be trusted until it has calmed down"
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
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return Finding("memory", "ok", f"{free:.1f} GB free")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    if free < 0.5:
        return Finding("disk", "wrong", f"{free:.2f} GB free in {Path.cwd()}", "make room before a long run")
    return Finding("disk", "ok", f"{free:.1f} GB free here")


def _extras() -> list[Finding]:
    findings = []
    for extra, (module, purpose) in _EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            remedy = f"pip install 'fedprox[{extra}]'"
            findings.append(Finding(extra, "note", f"not installed ({purpose})", remedy))
        else:
            findings.append(Finding(extra, "ok", f"installed ({purpose})"))
    return findings
