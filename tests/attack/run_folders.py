"""Damaged run folders, checkpoints and records, of runs with every method's state."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import fedprox
from attack.mutations import damaged
from attack.settings import SMALL
from fedprox.cli import app
from fedprox.config import Config
from fedprox.config.builtin_parts import BUILTIN
from fedprox.core.errors import FedProxError
from fedprox.core.files import read_tensors, write_tensors
from fedprox.core.trees import flatten_names
from fedprox.experiments.compare import collect
from fedprox.experiments.scheduler import Job
from fedprox.experiments.unfinished import run_unfinished
from fedprox.runs.checkpoint import Checkpoint
from fedprox.runs.folder import RunFolder
from fedprox.runs.records import is_record_of, keep_record

__all__ = ["SilentChangeError", "attack_checkpoint", "attack_record", "attack_run_folder", "damage_folder"]


class SilentChangeError(Exception):
    """Damaged input was taken for what was written."""


def damage_folder(source: Path, target: Path, dice: random.Random) -> None:
    """Copy a folder, and damage one of its files."""
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


def _run_settings(name: str) -> dict[str, Any]:
    """Return the settings of a run whose state is that of a method, of personal parameters or of a controller."""
    more: dict[str, Any] = {"method": {"name": name}}
    if name == "personal":
        more = {"method": {"name": "fedprox", "mu": "auto"}, "personal": {"parameters": ["bias"]}}
    elif name == "attacked":
        more = {"merge": {"rule": "centered_clipping"}, "attack": {"share": 0.5}, "method": {"mu": "adaptive"}}
    return {**SMALL, "checkpoint": {"every": 1}, **more}


_RUNS = (*BUILTIN["methods"], "personal", "attacked")


def _drawn_run(folder: Path, dice: random.Random) -> tuple[str, Path]:
    """Return the name and the folder of one of the runs, which is made when it is drawn first."""
    name = dice.choice(_RUNS)
    run = folder / "runs" / name
    if not run.exists():
        new = folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fedprox.train(_run_settings(name), out=new)
            result = fedprox.train({**_run_settings(name), "rounds": 3})
        write_tensors(folder / f"{name}.safetensors", flatten_names(result.params), {})
        run.parent.mkdir(exist_ok=True)
        new.rename(run)
    return name, run


def attack_run_folder(folder: Path, dice: random.Random) -> None:
    _, run = _drawn_run(folder, dice)
    damage_folder(run, folder / "case", dice)
    commands, weights = (["watch", "--once"], ["export"], ["evaluate"], ["report"]), (6, 2, 2, 1)  # the slow ones less
    result = CliRunner().invoke(app, [*dice.choices(commands, weights)[0], str(folder / "case")])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise FedProxError(result.output)


def attack_checkpoint(folder: Path, dice: random.Random) -> None:
    """Resume a damaged run folder: it must go on from a state that the run had, or be refused."""
    name, run = _drawn_run(folder, dice)
    shutil.rmtree(folder / "case", ignore_errors=True)
    shutil.copytree(run, folder / "case")
    names = [
        path for path in (folder / "case").rglob("*") if path.is_file() and path.name not in ("lock", "config.toml")
    ]
    file = dice.choice(sorted(names))
    file.write_bytes(damaged(file.read_bytes(), dice))
    config = Config.from_dict({**_run_settings(name), "rounds": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dice.random() < 0.1:
            result = fedprox.train(config, out=folder / "case", resume=True)
            whole, found = read_tensors(folder / f"{name}.safetensors")[0], flatten_names(result.params)
            is_same = whole.keys() == found.keys() and all(np.array_equal(whole[key], found[key]) for key in whole)
        else:  # what decides how it goes on, without the round itself
            resumed = RunFolder(folder / "case", config, resume=True)
            resumed.close()
            is_same = resumed.checkpoint is None or _state(resumed.checkpoint) in _states(run)
    if not is_same:
        raise SilentChangeError("a run went on from a damaged checkpoint")


@cache
def _states(run: Path) -> list[bytes]:
    """Return the states that a whole run has kept."""
    found = []
    for name in ("state", "previous"):
        tensors, values = read_tensors(run / "checkpoint" / f"{name}.safetensors")
        found.append(_state(Checkpoint(values["round"], tensors, values["state"])))
    return found


def _state(checkpoint: Checkpoint) -> bytes:
    arrays = [name.encode() + array.tobytes() for name, array in sorted(checkpoint.tensors.items())]
    return b"".join([json.dumps([checkpoint.round, checkpoint.state], sort_keys=True).encode(), *arrays])


def attack_record(folder: Path, dice: random.Random) -> None:
    """Continue a comparison with the damaged record of a run that counts as done."""
    name, run = _drawn_run(folder, dice)
    keep_record(run, folder / "record", devices=True)
    damage_folder(folder / "record", folder / "case" / "run", dice)
    shutil.rmtree(folder / "out", ignore_errors=True)
    job = Job("run", Config.from_dict(_run_settings(name)), folder / "out" / "run", resume=True)
    if is_record_of(folder / "case" / "run", job.config):
        collect(run_unfinished([job], root=folder / "out", records=folder / "case")).table()
        for file in ("metrics.jsonl", "devices.jsonl"):
            if (job.out / file).read_bytes() != (run / file).read_bytes():
                raise SilentChangeError(f"{file} of a damaged record was taken")
