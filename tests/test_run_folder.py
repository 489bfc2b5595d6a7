import json
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedprox
from fedprox.config import Config
from fedprox.core.errors import ConfigError, FedProxError, RunFolderError
from fedprox.core.files import read_tensors, write_tensors
from fedprox.runs.folder import RunFolder, read_history, read_summary

PLAN = {
    "rounds": 6,
    "data": {"devices": 12},
    "method": {"mu": "adaptive", "mu_initial": 0.2},
    "solver": {"epochs": 1},
    "devices": {"stragglers": 0.5},
    "checkpoint": {"every": 2},
}
TIMES = ("seconds", "solve_seconds", "measure_seconds")


def lines(path, name):
    rows = [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, fedprox.train(PLAN, out=folder)


def test_what_a_run_leaves_behind(finished):
    folder, result = finished
    config = Config.from_dict(tomllib.loads((folder / "config.toml").read_text()))
    assert config == Config.from_dict(PLAN)
    metrics = lines(folder, "metrics")
    assert [row["round"] for row in metrics] == list(range(7))
    assert {"train_loss", "train_accuracy", "test_accuracy", "gradient_variance", "dissimilarity", "mu"} <= set(
        metrics[0]
    )
    devices = lines(folder, "devices")
    assert [row["round"] for row in devices] == list(range(1, 7))
    for row in devices:
        names = ("device", "samples", "draws", "straggler", "epochs", "budget", "steps", "kept", "weight")
        assert {len(row[name]) for name in names} == {10}
    evaluation = lines(folder, "evaluation")
    assert len(evaluation) == 12
    pooled = sum(row["train_loss"] * row["train_samples"] for row in evaluation)
    assert pooled / sum(row["train_samples"] for row in evaluation) == pytest.approx(metrics[-1]["train_loss"])
    weights = load_file(folder / "model.safetensors")
    np.testing.assert_array_equal(weights["weight"], result.params["weight"])
    summary = read_summary(folder)
    assert summary["ended"] == "finished"
    assert {"seconds", "compile_seconds", "peak_memory_mb", "versions", "converged_round", "diverged_round"} <= set(
        summary
    )
    assert (folder / "checkpoint").is_dir()


def test_history_converts_to_frames(finished):
    pytest.importorskip("polars")
    _, result = finished
    pandas, polars = result.history.to_pandas(), result.history.to_polars()
    assert list(pandas["round"]) == polars["round"].to_list() == list(range(7))
    assert result.devices.to_polars()["device"][0].to_list() == result.devices[0]["device"]
    assert result.history[2:4].column("round") == [2, 3]
    assert "7 rows" in repr(result.history)


@pytest.mark.parametrize("last", [0, 3])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(finished, tmp_path, last):
    folder = tmp_path / "resumed"
    fedprox.train(PLAN, out=folder, callbacks=[lambda progress: progress.round == last])
    assert read_summary(folder)["ended"] == "stopped"
    result = fedprox.train(PLAN, out=folder, resume=True)
    whole, straight = finished
    assert lines(folder, "metrics") == lines(whole, "metrics")
    assert lines(folder, "devices") == lines(whole, "devices")
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert len(result.history) == len(straight.history)
    assert read_summary(folder)["ended"] == "finished"


def test_more_rounds_and_another_engine_may_be_asked_for_but_nothing_else(finished, tmp_path):
    folder = tmp_path / "run"
    fedprox.train({**PLAN, "rounds": 4}, out=folder)
    with pytest.raises(RunFolderError, match=r"resume must not change `seed`, `solver.epochs`"):
        fedprox.train({**PLAN, "seed": 1, "solver": {"epochs": 2}}, out=folder, resume=True)
    with pytest.raises(RunFolderError, match=r"`rounds` must not be smaller than before .*\(4\); got 3"):
        fedprox.train({**PLAN, "rounds": 3}, out=folder, resume=True)
    fedprox.train({**PLAN, "engine": {"workers": 1}, "checkpoint": {"every": 5}}, out=folder, resume=True)
    assert lines(folder, "metrics") == lines(finished[0], "metrics")


def test_a_half_written_line_is_repaired(finished, tmp_path):
    folder = tmp_path / "run"
    fedprox.train({**PLAN, "rounds": 3}, out=folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "train_lo')
    assert len(read_history(folder)) == 4
    fedprox.train(PLAN, out=folder, resume=True)
    assert lines(folder, "metrics") == lines(finished[0], "metrics")


def test_a_folder_that_holds_a_run_or_something_else_is_refused(finished, tmp_path):
    with pytest.raises(RunFolderError, match="already holds a run"):
        fedprox.train(PLAN, out=finished[0])
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no run"):
        fedprox.train(PLAN, out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note.txt"]


def test_two_writers_are_one_too_many(tmp_path):
    config = Config.from_dict(PLAN)
    folder = RunFolder(tmp_path / "run", config)
    with pytest.raises(RunFolderError, match="is being written by another process"):
        RunFolder(tmp_path / "run", config, resume=True)
    folder.close()
    RunFolder(tmp_path / "run", config, resume=True).close()


def test_nothing_is_written_where_the_input_is_bad(tmp_path):
    with pytest.raises(FedProxError):
        fedprox.train({**PLAN, "devices": {"per_round": 99}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_saved_model_may_be_the_start(finished, tmp_path):
    folder, result = finished
    for start in (folder, folder / "model.safetensors"):
        again = fedprox.train({**PLAN, "rounds": 1, "model": {"init": str(start)}})
        assert again.history[0]["train_loss"] == result.history[-1]["train_loss"]
    with pytest.raises(ConfigError, match=r"`model.init` must fit the model mlp: parameter"):
        fedprox.train({**PLAN, "model": {"init": str(folder), "name": "mlp"}})
    with pytest.raises(FedProxError, match="does not exist"):
        fedprox.train({**PLAN, "model": {"init": str(tmp_path / "nothing.safetensors")}})
    named, _ = read_tensors(folder / "model.safetensors")
    named["bias"] = np.full_like(named["bias"], np.nan)
    write_tensors(tmp_path / "spoilt.safetensors", named)
    with pytest.raises(ConfigError, match=r"`model.init` must hold only finite numbers, which 'bias' does not; got"):
        fedprox.train({**PLAN, "model": {"init": str(tmp_path / "spoilt.safetensors")}})
