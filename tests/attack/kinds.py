"""What is attacked: for each kind, how a sound input is made, how it is damaged, and who reads it.

A case is passed when it ends with data or with one of our own errors. Anything else that is raised is a traceback. A
case of a kind with digests that ends with other data than were written is a silent change.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import fedprox
from attack.mutations import damaged, nasty_settings
from fedprox.cli import app
from fedprox.config import Config
from fedprox.config.toml import read_toml
from fedprox.core.errors import FedProxError
from fedprox.data import read_arrow, read_leaf, read_npz
from fedprox.data.idx import read_idx
from fedprox.participation.clock.profiles import read_profile
from fedprox.participation.clock.trace import read_trace
from fedprox.population import Population
from fedprox.population.folder import open_population
from fedprox.population.writer import save_population

__all__ = ["KINDS", "Kind"]

SMALL = {"rounds": 2, "solver": {"epochs": 1}, "data": {"devices": 4}, "devices": {"per_round": 2}, "seed": 1}


class SilentChangeError(Exception):
    """Damaged input was taken for what was written."""


@dataclass(frozen=True)
class Kind:
    """`make(folder)` writes sound input once; `attack(folder, dice)` damages a copy and reads it."""

    make: Callable[[Path], None]
    attack: Callable[[Path, random.Random], None]


def _file(name: str, content: Callable[[Path], None], read: Callable[[Path], Any]) -> Kind:
    def attack(folder: Path, dice: random.Random) -> None:
        file = folder / "case" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(damaged((folder / name).read_bytes(), dice))
        read(file)

    return Kind(lambda folder: content(folder / name), attack)


def _arrays() -> dict[str, Any]:
    random_ = np.random.default_rng(0)
    return {"x": random_.normal(size=(12, 3)), "y": np.arange(12) % 2, "device": np.repeat([0, 1, 2], 4)}


def _write_arrow(file: Path) -> None:
    import pyarrow
    import pyarrow.feather
    import pyarrow.parquet

    arrays = _arrays()
    table = pyarrow.table({"x": arrays["x"].tolist(), "y": arrays["y"], "device": arrays["device"]})
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        pyarrow.feather.write_feather(table, file)


def _write_idx(file: Path) -> None:
    file.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(16)))


def _write_trace(file: Path) -> None:
    line = {"samples_per_second": 300, "download_bytes_per_second": 2e6, "upload_bytes_per_second": 5e5}
    spans = {"latency_seconds": 0.1, "available": [[0, 21600], [79200, 86400]], "class": "phone"}
    file.write_text("".join(json.dumps(row) + "\n" for row in (line, line | spans, line)))


def _read_trace(file: Path) -> None:
    trace = read_trace(file, 3)
    trace.at(np.arange(3), 1)
    trace.seconds_left(np.arange(3), 12345.0)


def _write_profile(file: Path) -> None:
    from importlib.resources import files

    file.write_text((files("fedprox.participation.clock") / "phones.toml").read_text())


def _leaf_make(folder: Path) -> None:
    users = {name: {"x": [[0.5, 1.0], [1, 2]], "y": [0, 1]} for name in ("a", "b")}
    content = json.dumps({"users": ["a", "b"], "num_samples": [2, 2], "user_data": users})
    (folder / "leaf.json").write_text(content)


def _leaf_attack(folder: Path, dice: random.Random) -> None:
    for part in ("train", "test"):
        place = folder / "case" / part
        place.mkdir(parents=True, exist_ok=True)
        (place / "all.json").write_bytes((folder / "leaf.json").read_bytes())
    part = dice.choice(("train", "test"))
    (folder / "case" / part / "all.json").write_bytes(damaged((folder / "leaf.json").read_bytes(), dice))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_leaf(folder / "case")


def _config_attack(folder: Path, dice: random.Random) -> None:
    if dice.random() < 0.3:
        file = folder / "case.toml"
        file.write_bytes(damaged(Config.from_dict(SMALL).to_toml().encode(), dice))
        Config.from_dict(read_toml(file))
        return
    settings = {**Config.from_dict(SMALL).to_dict()}
    settings.pop("deploy", None)
    chosen = Config.from_dict(nasty_settings(settings, dice))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fedprox.train(chosen, callbacks=[lambda progress: True])  # everything that comes before the first round


def _population_make(folder: Path) -> None:
    arrays = _arrays()
    save_population(Population.from_arrays(**arrays), folder / "population")


def _contents(population: Population) -> list[bytes]:
    parts = [
        np.ascontiguousarray(a).tobytes() for s in (population.train, population.test) for a in (s.x, s.y, s.offsets)
    ]
    return [*parts, str(population.classes).encode(), *(population.name(k).encode() for k in range(population.devices))]


def _damage_folder(source: Path, target: Path, dice: random.Random) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    file = dice.choice(sorted(path for path in target.rglob("*") if path.is_file()))
    if dice.random() < 0.1:
        file.unlink()
    elif dice.random() < 0.05:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(damaged(file.read_bytes(), dice))


def _population_attack(folder: Path, dice: random.Random) -> None:
    _damage_folder(folder / "population", folder / "case", dice)
    whole = _contents(open_population(folder / "population"))
    population = open_population(folder / "case", verify=dice.random() < 0.3)
    population.check()  # as a run does before it uses the samples
    population.check(test=True)
    if _contents(population) != whole:
        raise SilentChangeError("a damaged population was read")


def _run_make(folder: Path) -> None:
    fedprox.train({**SMALL, "checkpoint": {"every": 1}}, out=folder / "run")
    result = fedprox.train({**SMALL, "rounds": 3})
    np.savez(folder / "expected.npz", *[np.asarray(leaf) for leaf in result.params.values()])


def _run_attack(folder: Path, dice: random.Random) -> None:
    _damage_folder(folder / "run", folder / "case", dice)
    commands = (["report"], ["watch", "--once"], ["export"], ["evaluate"])
    result = CliRunner().invoke(app, [*dice.choice(commands), str(folder / "case")])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


def _checkpoint_attack(folder: Path, dice: random.Random) -> None:
    shutil.rmtree(folder / "case", ignore_errors=True)
    shutil.copytree(folder / "run", folder / "case")
    names = [
        path for path in (folder / "case").rglob("*") if path.is_file() and path.name not in ("lock", "config.toml")
    ]
    file = dice.choice(sorted(names))
    file.write_bytes(damaged(file.read_bytes(), dice))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fedprox.train({**SMALL, "rounds": 3, "checkpoint": {"every": 1}}, out=folder / "case", resume=True)
    with np.load(folder / "expected.npz") as expected:
        whole = [expected[name] for name in expected.files]
    if not all(np.array_equal(a, b) for a, b in zip(whole, result.params.values(), strict=True)):
        raise SilentChangeError("a run went on from a damaged checkpoint")


def _message_make(folder: Path) -> None:
    (folder / "array.npy").write_bytes(_npy(np.arange(6, dtype=np.float32).reshape(2, 3)))


def _message_attack(folder: Path, dice: random.Random) -> None:
    from fedprox.deploy.messages import read_array

    read_array(damaged((folder / "array.npy").read_bytes(), dice))


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


KINDS: dict[str, Kind] = {
    "npz": _file("data.npz", lambda file: np.savez(file, **_arrays()), read_npz),
    "arrow": _file("data.arrow", _write_arrow, read_arrow),
    "parquet": _file("data.parquet", _write_arrow, read_arrow),
    "idx": _file("data.gz", _write_idx, lambda file: read_idx(file, 3)),
    "leaf": Kind(_leaf_make, _leaf_attack),
    "traces": _file("trace.jsonl", _write_trace, _read_trace),
    "profiles": _file("profile.toml", _write_profile, lambda file: read_profile(str(file))),
    "configs": Kind(lambda folder: None, _config_attack),
    "populations": Kind(_population_make, _population_attack),
    "run folders": Kind(_run_make, _run_attack),
    "checkpoints": Kind(_run_make, _checkpoint_attack),
    "deploy messages": Kind(_message_make, _message_attack),
}
OURS = FedProxError
