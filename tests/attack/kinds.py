"""What is attacked: for each kind, how a sound input is made, how it is damaged, and who reads it.

A case is passed when it ends with data or with one of our own errors. Anything else that is raised is a traceback. A
case of a kind with digests that ends with other data than were written is a silent change.
"""

from __future__ import annotations

import gzip
import importlib
import json
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedprox
from attack.fleets import attack_fleet, write_fleets
from attack.mutations import NASTY, damaged, nasty_settings
from attack.run_folders import SilentChangeError, attack_checkpoint, attack_record, attack_run_folder, damage_folder
from attack.settings import drawn_settings
from fedprox.config import Config
from fedprox.config.toml import read_toml
from fedprox.core.errors import FedProxError
from fedprox.core.files import read_tensors, write_tensors
from fedprox.data import read_arrow, read_leaf, read_npz
from fedprox.data.cifar10 import read_batch
from fedprox.data.csv import read_csv
from fedprox.data.idx import read_idx
from fedprox.data.sent140 import read_tweets
from fedprox.data.shakespeare import read_roles
from fedprox.data.word_vectors import read_vectors
from fedprox.participation.clock.profiles import read_profile
from fedprox.participation.clock.trace import read_trace
from fedprox.population import Population
from fedprox.population.folder import open_population
from fedprox.population.writer import save_population

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """`make(folder)` writes sound input once; `attack(folder, dice)` damages a copy and reads it."""

    make: Callable[[Path], Any]
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
    settings = drawn_settings(dice)
    if dice.random() < 0.3:
        file = folder / "case.toml"
        file.write_bytes(damaged(Config.from_dict(settings).to_toml().encode(), dice))
        Config.from_dict(read_toml(file))
        return
    settings.pop("deploy", None)
    chosen = Config.from_dict(settings if dice.random() < 0.3 else nasty_settings(settings, dice))
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


def _population_attack(folder: Path, dice: random.Random) -> None:
    damage_folder(folder / "population", folder / "case", dice)
    whole = _contents(open_population(folder / "population"))
    population = open_population(folder / "case", verify=dice.random() < 0.3)
    population.check()  # as a run does before it uses the samples
    population.check(test=True)
    if _contents(population) != whole:
        raise SilentChangeError("a damaged population was read")


def _model_make(folder: Path) -> None:
    write_tensors(folder / "model.safetensors", {"weight": np.ones((60, 10), np.float32), "bias": np.ones(10)}, {})


def _model_attack(folder: Path, dice: random.Random) -> None:
    file = folder / "case.safetensors"
    file.write_bytes(damaged((folder / "model.safetensors").read_bytes(), dice))
    tensors, values = read_tensors(file)
    if values is not None and not all((array == 1).all() for array in tensors.values()):
        raise SilentChangeError("a damaged model was read")


def _message_attack(folder: Path, dice: random.Random) -> None:
    """Change a good message of a node, and give it to every place of the server that takes one."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

    from test_deploy_fuzz import GOOD, check

    records = dice.choice(GOOD).to_records()  # type: ignore[attr-defined]
    for _ in range(dice.choice((1, 1, 2, 4))):
        change = dice.randrange(6)
        if change == 0 and "values" in records.config_records:
            key = dice.choice([*records["values"], "steps", "loss", "device", "train_samples"])
            records["values"][key] = dice.choice(_VALUES)
        elif change == 1 and records.config_records.get("values"):
            records["values"].pop(dice.choice(sorted(records["values"])))
        elif change <= 3 and records.array_records.get("arrays"):
            name = dice.choice(sorted(records["arrays"]))
            sent = records["arrays"][name]
            shape = dice.choice((sent.shape, sent.shape, (), (2**62,), (0, 5)))
            dtype = dice.choice((sent.dtype, sent.dtype, "O", "float64", "<U99"))
            records["arrays"][name] = Array(dtype, shape, sent.stype, damaged(sent.data, dice))
        elif change == 4:
            name = dice.choice(("weight", "", "x" * 10_000))
            records["arrays"] = ArrayRecord({name: Array("float32", (2,), "numpy.ndarray", dice.randbytes(40))})
        elif change == 5:
            kind = dice.choice((MetricRecord({"a": 1.0}), ConfigRecord({"x" * 999: dice.choice(_VALUES)})))
            records[dice.choice(("arrays", "values", "more"))] = kind
    check(records)


_VALUES: list[Any] = [value for value in NASTY if isinstance(value, (float, str))]
_VALUES += [value for value in NASTY if isinstance(value, int) and abs(value) < 2**63]
_VALUES += [b"", b"x" * 5000, "x" * 5_000_000, [1, 2], [0.5], ["a"], [True]]


def _write_csv(file: Path) -> None:
    arrays = _arrays()
    rows = zip(arrays["device"].tolist(), arrays["y"].tolist(), arrays["x"].tolist(), strict=True)
    lines = [",".join(map(str, [device, label, *values])) for device, label, values in rows]
    file.write_text("device,y,a,b,c\n" + "\n".join(lines) + "\n")


def _write_plays(file: Path) -> None:
    play = "1599\n\nA PLAY\n\nby William Shakespeare\n\nACT I. SCENE 1.\nA room\n\nEnter ANNE\n\n"
    file.write_text(play + "  ANNE. Good\n    morrow. [Aside] Alas!          Exit\n  TOM. Well met.\n" * 20)


def _write_tweets(file: Path) -> None:
    rows = [f'"{4 * (row % 2)}","{row}","Mon","NO_QUERY","user{row % 3}","a tweet, {row}!"' for row in range(12)]
    file.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


def _write_vectors(file: Path) -> None:
    file.write_text("".join(f"{word} 0.5 -1.25 3e-2\n" for word in ("a", "tweet", "the")))


def _write_batch(file: Path) -> None:
    file.write_bytes(gzip.compress(bytes([3]) + bytes(range(256)) * 12, mtime=0))


def _read_batch(file: Path) -> None:
    with file.open("rb") as opened:
        read_batch(opened, file.name)


KINDS: dict[str, Kind] = {
    "npz": _file("data.npz", lambda file: np.savez(file, **_arrays()), read_npz),
    "arrow": _file("data.arrow", _write_arrow, read_arrow),
    "parquet": _file("data.parquet", _write_arrow, read_arrow),
    "idx": _file("data.gz", _write_idx, lambda file: read_idx(file, 3)),
    "leaf": Kind(_leaf_make, _leaf_attack),
    "traces": _file("trace.jsonl", _write_trace, _read_trace),
    "fleets": Kind(write_fleets, attack_fleet),
    "profiles": _file("profile.toml", _write_profile, lambda file: read_profile(str(file))),
    "configs": Kind(lambda folder: None, _config_attack),
    "populations": Kind(_population_make, _population_attack),
    "run folders": Kind(lambda folder: None, attack_run_folder),
    "checkpoints": Kind(lambda folder: None, attack_checkpoint),
    "records": Kind(lambda folder: None, attack_record),
    "models": Kind(_model_make, _model_attack),
    "csv": _file("data.csv", _write_csv, read_csv),
    "plays": _file("plays.txt", _write_plays, read_roles),
    "tweets": _file("tweets.csv.gz", _write_tweets, lambda file: list(read_tweets(file))),
    "word vectors": _file("vectors.txt", _write_vectors, lambda file: read_vectors(file, {"a", "tweet"})),
    "images": _file("batch.bin.gz", _write_batch, _read_batch),
    "deploy messages": Kind(lambda folder: importlib.import_module("test_deploy_fuzz"), _message_attack),
}
OURS = FedProxError
