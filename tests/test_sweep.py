"""Grids of runs, and the paper's way of tuning."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.config import Config
from fedprox.experiments.scheduler import Job, run_jobs
from fedprox.experiments.sweep import axis, grid, sweep
from fedprox.experiments.tune import Choice, tune
from fedprox.report.verdict import verdict
from fedprox.runs.reader import find_runs
from fedprox.runs.seed_groups import group_runs

SMALL = {"rounds": 3, "solver": {"epochs": 1}, "data": {"name": "synthetic_iid"}}


def test_axis_reads_lists_and_ranges() -> None:
    assert axis("seed=0..2,7").values == ("0", "1", "2", "7")
    assert axis("method.mu=adaptive, 1").values == ("adaptive", "1")
    for text in ("seed", "=1", "seed=", "seed=1,,2", "seed=4..1"):
        with pytest.raises(fedprox.FedProxError, match="must be"):
            axis(text)


def test_a_grid_is_checked_before_anything_runs(tmp_path: Path) -> None:
    jobs = grid(SMALL, [axis("method.mu=0,1"), axis("seed=0..1")], tmp_path)
    assert [job.out.name for job in jobs] == [f"method.mu={mu},seed={seed}" for mu in (0, 1) for seed in (0, 1)]
    assert [job.config.method.mu for job in jobs] == [0.0, 0.0, 1.0, 1.0]
    with pytest.raises(fedprox.FedProxError, match=r"`solver.epochs` must be"):
        sweep(SMALL, ["solver.epochs=1,0"], out=tmp_path)
    with pytest.raises(fedprox.FedProxError, match="`seed` twice"):
        sweep(SMALL, ["seed=1", "seed=2"], out=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("axes", "problem"),
    [
        ("method.mu=0,1", r"`axes` must be a list such as .*; got 'method.mu=0,1'"),
        (None, "`axes` must be a list .*; got None"),
        ({"method.mu": 1}, "`axes` must hold a list of values for each key; got 1 for 'method.mu'"),
        ({"method.name": "fedavg"}, "a list of values for each key; got 'fedavg' for 'method.name'"),
        ({"method.mu": []}, "at least one value for each key; got none for 'method.mu'"),
        ({"method.mu": [None]}, "values of settings: numbers, text and lists; got NoneType for 'method.mu'"),
    ],
)
def test_axes_from_python_of_another_kind(tmp_path: Path, axes: object, problem: str) -> None:
    with pytest.raises(fedprox.FedProxError, match=problem):
        sweep(SMALL, axes, out=tmp_path)
    with pytest.raises(fedprox.FedProxError, match="`workers` must be an integer >= 0; got -1"):
        sweep(SMALL, ["seed=0"], out=tmp_path, workers=-1)


@pytest.mark.usefixtures("runs_here")
def test_axes_may_be_arrays_of_numpy(tmp_path: Path) -> None:
    rates = np.array([0.25, 0.5], np.float32)
    done = sweep({**SMALL, "rounds": 1}, {"method.mu": rates}, out=tmp_path).done
    assert [folder.name for folder in done] == ["method.mu=0.25", "method.mu=0.5"]


@pytest.mark.usefixtures("runs_here")
def test_a_sweep_skips_what_is_finished_continues_what_is_not_and_ranks(tmp_path: Path) -> None:
    rates = ["solver.learning_rate=0.00001,0.03"]
    first = sweep(SMALL, rates, out=tmp_path)
    assert (len(first.done), first.skipped, first.failed) == (2, 0, [])
    table = first.table()
    assert [row["method"] for row in table] == [
        "fedprox (mu=0, solver.learning_rate=0.03)",
        "fedprox (mu=0, solver.learning_rate=1e-05)",
    ]
    assert table[0]["test_accuracy"] > table[1]["test_accuracy"]
    finished = tmp_path / "solver.learning_rate=0.03" / "metrics.jsonl"
    before = finished.read_bytes()
    (tmp_path / "solver.learning_rate=0.00001" / "summary.json").unlink()  # as if it had been killed
    again = sweep(SMALL, rates, out=tmp_path)
    assert again.skipped == 1
    assert finished.read_bytes() == before
    assert [row["train_loss"] for row in again.table()] == [row["train_loss"] for row in table]
    with pytest.raises(fedprox.FedProxError, match=r"must not change `solver.epochs`"):
        sweep(SMALL | {"solver": {"epochs": 2}}, rates, out=tmp_path)


@pytest.mark.usefixtures("runs_here")
def test_a_run_that_an_own_rule_has_ended_is_done(tmp_path: Path) -> None:
    objects = {"stopping_rule": lambda history: history[-1]["round"] == 2}
    first = sweep(SMALL, ["seed=0,1"], out=tmp_path, **objects)
    assert [fedprox.load_run(path).summary["rounds"] for path in first.done] == [2, 2]
    again = sweep(SMALL, ["seed=0,1"], out=tmp_path, **objects)
    assert (len(again.done), again.skipped) == (2, 2)
    assert not any("has not finished" in sentence for sentence in verdict(group_runs(find_runs([tmp_path]))))
    fedprox.train(SMALL, out=tmp_path / "stopped", callbacks=[lambda progress: progress.round == 2])
    (sentence,) = verdict(group_runs(find_runs([tmp_path / "stopped"])))[-1:]
    assert "has not finished: 1 of 1 runs stand at round 2 of 3" in sentence


def test_a_run_that_fails_does_not_stop_the_rest(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('rounds = 2\n[data]\nname = "synthetic_iid"\n[solver]\nepochs = 1\n')
    arguments = ["sweep", str(config), "-g", "devices.per_round=5,31", "--out", str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert len(answer["table"]) == 1
    assert [failure["out"] for failure in answer["failed"]] == [str(tmp_path / "out" / "devices.per_round=31")]
    assert "`devices.per_round`" in answer["failed"][0]["error"]
    assert "devices.per_round=31 failed" in result.stderr


def test_the_scheduler_passes_on_a_failure_and_a_dead_worker(tmp_path: Path) -> None:
    events = []
    jobs = [
        Job("bad", Config.from_dict({"data": {"name": "npz", "path": str(tmp_path / "none.npz")}}), tmp_path / "a"),
        Job("good", Config.from_dict(SMALL), tmp_path / "b"),
    ]
    bad, good = run_jobs(jobs, workers=1, on_event=events.append)
    assert "does not exist" in bad.error
    assert good.summary["ended"] == "finished"
    assert [event.round for event in events] == [0, 1, 2, 3]


@pytest.mark.usefixtures("runs_here")
def test_tune_follows_the_paper(tmp_path: Path) -> None:
    settings = SMALL | {"devices": {"stragglers": 0.5}, "solver": {"epochs": 2}, "method": {"mu": 0.5}}
    result = tune(settings, out=tmp_path, rates=(0.0001, 0.03), mus=(0.001, 100.0))
    assert result.rate.value == 0.03
    assert result.mu.value == 0.001
    for folder in (tmp_path / "rate").iterdir():
        config = fedprox.load_run(folder).config
        assert (config.method.name, config.solver.epochs, config.devices.stragglers) == ("fedavg", 1, 0.0)
    for folder in (tmp_path / "mu").iterdir():
        config = fedprox.load_run(folder).config
        assert (config.method.name, config.solver.epochs, config.devices.stragglers) == ("fedprox", 2, 0.5)
        assert config.solver.learning_rate == 0.03
    written = Config.from_toml(tmp_path / "tuned.toml")
    assert (written.solver.learning_rate, written.method.mu, written.solver.epochs) == (0.03, 0.001, 2)
    expected = min(result.mu.scores, key=result.mu.scores.__getitem__)
    assert expected == result.mu.value


@pytest.mark.usefixtures("runs_here")
def test_optuna_suggests_values(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    result = tune(SMALL | {"rounds": 1}, out=tmp_path, trials=2, rates=(0.001, 0.1))
    assert len(result.rate.scores) == 2
    assert all(0.001 <= value <= 0.1 for value in result.rate.scores)


def test_a_choice_explains_itself() -> None:
    words = Choice("method.mu", 1.0, {0.1: 0.5, 1.0: 0.4, 10.0: float("inf")}).words()
    assert words == "method.mu = 1, with the lowest training loss (0.1: 0.5000, 1: 0.4000, 10: diverged)."
    assert "at the end of the range" in Choice("method.mu", 0.1, {0.1: 0.4, 1.0: 0.5}).words()
    assert Choice("method.mu", 0.1, {}).words() == "method.mu = 0.1, the only value given."


def test_tune_says_why_it_chooses_mu_for_another_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fast = ["-s", "rounds=1", "-s", "method.name=fedavg", "--rates", "0.02", "--mus", "0.5", "--out", "tuned"]
    done = CliRunner().invoke(app, ["tune", "synthetic-iid", *fast])
    assert done.exit_code == 0, done.output
    assert "On fedprox with this rate (fedavg has no proximal term): method.mu = 0.5" in done.output


def test_a_value_given_alone_is_not_tried(tmp_path: Path) -> None:
    result = tune(SMALL, out=tmp_path / "tune", rates=(0.02,), mus=(0.5,))
    assert (result.config.solver.learning_rate, result.config.method.mu) == (0.02, 0.5)
    assert [path.name for path in (tmp_path / "tune").iterdir()] == ["tuned.toml"]
