"""A new Flower app: settings, task, client app, server app and their simulation, ready to run."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Literal

from fedprox.core.errors import ConfigError
from fedprox.core.reading import reading, reason

__all__ = ["Framework", "write_project"]

Framework = Literal["jax", "torch"]

_DEPENDENCY = {"jax": "fedprox[flower]", "torch": "fedprox[flower,torch]"}
_SOLVER_LINE = {"jax": "", "torch": 'name = "federation.simulation:solver"\n'}


def write_project(folder: Path, *, framework: Framework = "jax", devices: int = 3) -> list[Path]:
    """Write the app into a new or empty folder and return its files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_project(Path(folder))]
    ['pyproject.toml', 'README.md', 'fedprox.toml', '.gitignore', '__init__.py', 'task.py', 'client_app.py', \
'server_app.py', 'simulation.py']
    """
    with reading(folder, "a folder for a new app", error=ConfigError):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"the folder of a new app must be empty or must not exist yet; got {folder}")
    try:
        out = json.dumps((folder / "runs" / "first").absolute().as_posix(), ensure_ascii=False)  # also a TOML string
        out.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the folder of a new app must have a name in UTF-8; got {folder}") from None
    app = folder / "federation"
    values = {
        "dependency": _DEPENDENCY[framework],
        "devices": str(devices),
        "out": out,
        "solver": _SOLVER_LINE[framework],
    }
    contents = {
        folder / "pyproject.toml": _template("pyproject.toml", values),
        folder / "README.md": _template("README.md", values),
        folder / "fedprox.toml": _template("fedprox.toml", values),
        folder / ".gitignore": "runs/\nkeys/\n",  # Flower leaves these out of the app as well
        app / "__init__.py": '"""FedProx on real devices."""\n',
        **{
            app / f"{part}.py": _template(f"{part}-{framework}.py", values)
            for part in ("task", "client_app", "server_app", "simulation")
        },
    }
    try:
        app.mkdir(parents=True)
        for path, text in contents.items():
            path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        why = getattr(error, "strerror", None) or reason(error)
        raise ConfigError(f"the new app cannot be written to {folder}: {why}") from None
    return list(contents)


def _template(name: str, values: dict[str, str]) -> str:
    text = (files("fedprox.deploy") / "project" / f"{name}.template").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
