"""A checkpoint is whole, belongs to its run and its records, or is refused before anything is touched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedprox
from fedprox.core.errors import RunFolderError
from fedprox.core.files import read_tensors, write_tensors

PLAN = {"rounds": 6, "data": {"devices": 12}, "solver": {"epochs": 1}, "checkpoint": {"every": 2}}
TIMES = ("seconds", "solve_seconds", "measure_seconds")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "whole"
    fedprox.train(PLAN, out=folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def content(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


def rows(path: Path, name: str) -> list[dict]:
    lines = (path / f"{name}.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(bytes(data))


def refused(run: Path, sentence: str, plan: dict = PLAN) -> None:
    before = content(run)
    with pytest.raises(RunFolderError, match=sentence):
        fedprox.train(plan, out=run, resume=True)
    assert content(run) == before  # nothing was touched, the results least of all


def test_a_run_without_its_checkpoint_folder_is_refused_and_gets_none(run: Path) -> None:
    shutil.rmtree(run / "checkpoint")
    refused(run, "its checkpoint is missing, and the run had ended")
    assert not (run / "checkpoint").exists()


def test_a_flipped_bit_is_found_and_the_checkpoint_before_it_serves(run: Path, whole: Path) -> None:
    flip(run / "checkpoint" / "state.safetensors", -3)
    with pytest.warns(UserWarning, match=r"state.safetensors is damaged: .*; continuing from round 4"):
        fedprox.train(PLAN, out=run, resume=True)
    assert rows(run, "metrics") == rows(whole, "metrics")
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_without_a_whole_checkpoint_nothing_is_touched(run: Path) -> None:
    for name in ("state", "previous"):
        flip(run / "checkpoint" / f"{name}.safetensors", -3)
    refused(run, r"run cannot be continued: .*state.safetensors is damaged: .*previous.safetensors is damaged")


def test_the_checkpoint_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    fedprox.train({**PLAN, "seed": 5}, out=tmp_path / "other")
    for name in ("state", "previous"):
        file = f"checkpoint/{name}.safetensors"
        shutil.copy(tmp_path / "other" / file, run / file)
    refused(run, "state.safetensors belongs to another run")


@pytest.mark.parametrize("name", ["metrics", "devices"])
def test_records_that_are_cut_changed_or_gone_are_refused(run: Path, name: str) -> None:
    file, sentence = run / f"{name}.jsonl", rf"{name}.jsonl is not the one that .* was saved with, at round 6"
    lines = file.read_bytes()
    file.write_bytes(lines[:40])
    refused(run, sentence)
    file.write_bytes(lines.replace(b"1", b"2", 1))
    refused(run, sentence)
    file.unlink()
    refused(run, sentence)


def test_a_cut_last_line_leads_back_to_the_checkpoint_before(run: Path, whole: Path) -> None:
    file = run / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=r"metrics.jsonl is not the one .*; continuing from round 4"):
        fedprox.train(PLAN, out=run, resume=True)
    assert rows(run, "metrics") == rows(whole, "metrics")


def test_a_checkpoint_that_is_gone_is_missed(run: Path, whole: Path, tmp_path: Path) -> None:
    (run / "checkpoint" / "state.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"state.safetensors is missing; continuing from round 4"):
        fedprox.train(PLAN, out=run, resume=True)
    assert rows(run, "devices") == rows(whole, "devices")
    shutil.copytree(whole, tmp_path / "again")
    for name in ("state", "previous"):
        (tmp_path / "again" / "checkpoint" / f"{name}.safetensors").unlink()
    refused(tmp_path / "again", "its checkpoint is missing, and the run had ended")
    (tmp_path / "again" / "summary.json").unlink()
    refused(tmp_path / "again", "its checkpoint is missing, and its records go to round 3")


def test_wrong_shapes_leave_a_finished_run_as_it_is(run: Path) -> None:
    file = run / "checkpoint" / "state.safetensors"
    tensors, values = read_tensors(file)
    tensors["params.weight"] = np.zeros((3, 3), np.float32)
    write_tensors(file, tensors, values)
    refused(run, r"its checkpoint does not fit the run: parameter 'weight' must have shape \(10, 60\); got \(3, 3\)")


def test_a_checkpoint_of_an_older_format_is_refused(run: Path) -> None:
    (run / "checkpoint" / "previous.safetensors").unlink()
    file = run / "checkpoint" / "state.safetensors"
    tensors, values = read_tensors(file)
    write_tensors(file, tensors, {**values, "format": 2})
    refused(run, "must be a checkpoint of format 3; got 2")
    import safetensors.numpy

    safetensors.numpy.save_file(tensors, file, {"state": "{}"})
    refused(run, "must be a checkpoint of format 3; got an older one")


def test_results_are_kept_until_new_ones_are_complete(run: Path, whole: Path) -> None:
    def die(progress: fedprox.Progress) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fedprox.train({**PLAN, "rounds": 8}, out=run, resume=True, callbacks=[die])
    assert not (run / "summary.json").exists()  # the run goes on
    for name in ("model.safetensors", "evaluation.jsonl", "summary.json"):
        assert (run / "checkpoint" / "before" / name).read_bytes() == (whole / name).read_bytes()
    fedprox.train({**PLAN, "rounds": 8}, out=run, resume=True)
    assert not (run / "checkpoint" / "before").exists()
    assert (run / "summary.json").exists()


def test_a_model_with_a_flipped_bit_is_not_used(run: Path) -> None:
    flip(run / "model.safetensors", -3)
    with pytest.raises(RunFolderError, match=r"model.safetensors is damaged"):
        fedprox.load_run(run).params  # noqa: B018 - read when it is asked for
    with pytest.raises(RunFolderError, match=r"model.safetensors is damaged"):
        fedprox.train({**PLAN, "model": {"init": str(run)}})


def test_a_number_alone_is_saved_as_one(tmp_path: Path) -> None:
    write_tensors(tmp_path / "one.safetensors", {"scale": np.float32(3)})
    tensors, _ = read_tensors(tmp_path / "one.safetensors")
    assert tensors["scale"].shape == ()
