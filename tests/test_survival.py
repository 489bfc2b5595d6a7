"""A run folder after a death at every single moment, repaired, refused or continued."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox
from fedprox.config import Config
from fedprox.config.parts import builtin_names
from fedprox.runs.checkpoint import Checkpoint
from fedprox.runs.folder import RunFolder, read_history

pytestmark = pytest.mark.filterwarnings("ignore:the theory of scaffnew needs every device in every round")

TIMES = ("seconds", "solve_seconds", "measure_seconds")


class Death(BaseException):
    """Not an error that anything answers: the process is gone."""


class Mortal:
    """Lets a process die at its n-th operation on files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.dies_at = 0, 0
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open"), (Path, "mkdir")):
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, operation):
        def wrapped(*arguments, **keywords):
            self.count += 1
            if self.count == self.dies_at:
                raise Death
            return operation(*arguments, **keywords)

        return wrapped


def work(path: Path, config: Config, resume: bool) -> None:
    """Do what training does with a folder, with numbers that depend on the round alone."""
    folder = RunFolder(path, config, resume=resume)
    try:
        first = folder.checkpoint.round + 1 if folder.checkpoint else 0
        if folder.checkpoint:
            folder.begin()
        for round in range(first, config.rounds + 1):
            folder.metrics({"round": round, "train_loss": 1 / (1 + round)})
            if round:
                folder.devices({"round": round, "device": [round]})
            if round % 2 == 0:
                folder.save(Checkpoint(round, {"w": weights(round)}, {"seen": round}))
        folder.finish({"w": weights(config.rounds)}, [{"device": 0}], {"ended": "finished"})
    finally:
        folder.close()


def weights(value: int) -> np.ndarray:
    return np.full(3, value, np.float32)


def content(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


def test_a_death_at_any_operation_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.from_dict({"rounds": 5})
    work(tmp_path / "whole", config, resume=False)
    whole = content(tmp_path / "whole")
    mortal = Mortal(monkeypatch)
    moments = 0
    while True:
        path = tmp_path / f"run-{moments}"
        mortal.count, mortal.dies_at = 0, moments + 1
        try:
            work(path, config, resume=True)
        except Death:
            moments += 1
        else:
            break
        mortal.count, mortal.dies_at = 0, moments // 2 + 1  # it dies a second time, while it is being continued
        with contextlib.suppress(Death):
            work(path, config, resume=True)
        mortal.dies_at = 0
        work(path, config, resume=True)
        assert content(path) == whole
    assert moments > 40


def test_a_half_written_last_line_is_repaired(tmp_path: Path) -> None:
    config: dict[str, Any] = {"rounds": 6, "solver": {"epochs": 1}, "checkpoint": {"every": 2}}
    fedprox.train(config, out=tmp_path / "whole")
    run = tmp_path / "run"

    def die(progress: fedprox.Progress) -> None:
        if progress.round == 5:
            raise Death

    with pytest.raises(Death):
        fedprox.train(config, out=run, callbacks=[die])
    for name in ("metrics", "devices"):
        with (run / f"{name}.jsonl").open("a") as file:
            file.write('{"round": 6, "train_lo')
        assert read_history(run, name)[-1]["round"] == 5  # readers leave it out
    fedprox.train(config, out=run, resume=True)
    assert_same(run, tmp_path / "whole")


@pytest.mark.parametrize("name", builtin_names("methods"))
def test_every_method_continues_as_if_undisturbed(tmp_path: Path, name: str) -> None:
    config = {"rounds": 5, "solver": {"epochs": 1}, "devices": {"stragglers": 0.5}, "checkpoint": {"every": 2}}
    config["method"] = {"name": name}
    if name == "fedprox":
        config["method"] |= {"mu": "adaptive", "mu_initial": 0.3}
    fedprox.train(config, out=tmp_path / "whole")

    def die(progress: fedprox.Progress) -> None:
        if progress.round == 3:
            raise Death

    with pytest.raises(Death):
        fedprox.train(config, out=tmp_path / "run", callbacks=[die])
    fedprox.train(config, out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tmp_path / "whole")


def assert_same(one: Path, other: Path) -> None:
    for name in ("metrics", "devices", "evaluation"):
        rows = [
            [{key: value for key, value in row.items() if key not in TIMES} for row in read_history(path, name)]
            for path in (one, other)
        ]
        assert rows[0] == rows[1]
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_more_rounds_leave_no_measurement_that_a_longer_run_would_not_have(tmp_path: Path) -> None:
    config = Config.from_dict({"rounds": 4, "measure": {"every": 3}})
    folder = RunFolder(tmp_path / "run", config)
    for round in (0, 3, 4):  # 4 is measured as the last
        folder.metrics({"round": round})
    for round in (1, 2, 3, 4):
        folder.devices({"round": round})
    folder.save(Checkpoint(4, {}, {}))
    folder.close()
    longer = RunFolder(tmp_path / "run", Config.from_dict({"rounds": 9, "measure": {"every": 3}}), resume=True)
    assert read_history(tmp_path / "run").column("round") == [0, 3, 4]  # nothing is touched before it is continued
    longer.begin()
    longer.close()
    assert read_history(tmp_path / "run").column("round") == [0, 3]
    assert read_history(tmp_path / "run", "devices").column("round") == [1, 2, 3, 4]


def test_a_run_that_goes_on_has_not_ended(tmp_path: Path) -> None:
    config = Config.from_dict({"rounds": 2})
    work(tmp_path / "run", config, resume=False)
    assert fedprox.load_run(tmp_path / "run").summary == {"ended": "finished"}
    folder = RunFolder(tmp_path / "run", Config.from_dict({"rounds": 4}), resume=True)
    assert fedprox.load_run(tmp_path / "run").summary == {"ended": "finished"}
    folder.begin()
    assert fedprox.load_run(tmp_path / "run").summary is None
    assert (tmp_path / "run" / "checkpoint" / "before" / "model.safetensors").exists()
    folder.close()
    work(tmp_path / "run", Config.from_dict({"rounds": 4}), resume=True)
    assert not (tmp_path / "run" / "checkpoint" / "before").exists()


def test_a_changed_config_is_refused_by_name(tmp_path: Path) -> None:
    work(tmp_path / "run", Config.from_dict({"rounds": 2}), resume=False)
    before = content(tmp_path / "run")
    changed = {"rounds": 2, "seed": 3, "solver": {"epochs": 7}, "engine": {"workers": 1}, "checkpoint": {"every": 1}}
    with pytest.raises(fedprox.FedProxError, match=r"must not change `seed`, `solver.epochs`$"):
        RunFolder(tmp_path / "run", Config.from_dict(changed), resume=True)
    with pytest.raises(fedprox.FedProxError, match=r"`rounds` must not be smaller .* \(2\); got 1"):
        RunFolder(tmp_path / "run", Config.from_dict({"rounds": 1}), resume=True)
    with pytest.raises(fedprox.FedProxError, match="already holds a run"):
        RunFolder(tmp_path / "run", Config.from_dict({"rounds": 2}))
    assert content(tmp_path / "run") == before


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(fedprox.FedProxError, match="is not empty and holds no run"):
        RunFolder(tmp_path, Config(), resume=True)
    assert content(tmp_path) == {"thesis.txt": b"precious"}


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        (
            "metrics.jsonl",
            '{"round": 0}\n\x00\x00\n',
            r"run/metrics.jsonl is not the one that .*state.safetensors was saved with, at round 2",
        ),
        ("devices.jsonl", '{"round": 2}\n', r"run/devices.jsonl is not the one that .* at round 2"),
        ("checkpoint/state.safetensors", "none", r"is not a readable safetensors file"),
        ("config.toml", "=", r"is not valid TOML"),
    ],
)
def test_a_damaged_folder_is_named_in_one_sentence(tmp_path: Path, file: str, text: str, sentence: str) -> None:
    work(tmp_path / "run", Config.from_dict({"rounds": 2}), resume=False)
    (tmp_path / "run" / "checkpoint" / "previous.safetensors").unlink()
    (tmp_path / "run" / file).write_text(text)
    with pytest.raises(fedprox.FedProxError, match=sentence):
        RunFolder(tmp_path / "run", Config.from_dict({"rounds": 2}), resume=True)


def test_one_folder_has_one_writer(tmp_path: Path) -> None:
    config = Config()
    folder = RunFolder(tmp_path / "run", config)
    with pytest.raises(fedprox.FedProxError, match="is being written by another process"):
        RunFolder(tmp_path / "run", config, resume=True)
    folder.close()
    RunFolder(tmp_path / "run", config, resume=True).close()


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", Config())
    folder.metrics({"round": 0, "train_loss": float("nan")})
    folder.close()
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text()) == {"round": 0, "train_loss": None}
