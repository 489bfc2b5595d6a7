"""What can be done with a run after it has ended: watch, export, evaluate, predict."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.core.threads import Workers
from fedprox.data import synthetic
from fedprox.report.watch import follow, sparkline, states
from fedprox.runs.evaluate import evaluate, predict
from fedprox.runs.export import export
from fedprox.runs.folder import RunFolder
from fedprox.runs.notebook_view import curve_svg


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("saved") / "run"
    fedprox.train({"rounds": 3, "solver": {"epochs": 1}, "devices": {"stragglers": 0.5}}, out=out)
    return out


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_export_gives_the_same_numbers_in_both_formats(run: Path, tmp_path: Path) -> None:
    files = export(run, tmp_path, ["csv", "parquet"])
    assert sorted(file.name for file in files) == [
        f"{name}.{form}" for name in ("devices", "evaluation", "metrics") for form in ("csv", "parquet")
    ]
    saved = fedprox.load_run(run)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [float(row["train_loss"]) for row in rows] == saved.history.column("train_loss")
    frame = polars.read_parquet(tmp_path / "devices.parquet")
    assert frame.height == 3 * 10
    assert frame["weight"].sum() == pytest.approx(3.0)
    first = saved.devices[0]
    assert frame.filter(frame["round"] == 1)["steps"].to_list() == first["steps"]
    with pytest.raises(fedprox.FedProxError, match="a format must be one of csv, parquet; got 'xml'"):
        export(run, tmp_path, ["xml"])


def test_evaluate_measures_what_training_measured(run: Path) -> None:
    last = fedprox.load_run(run).last
    result = evaluate(run)
    assert result["train_loss"] == pytest.approx(last["train_loss"], rel=1e-6)
    assert result["test_accuracy"] == pytest.approx(last["test_accuracy"], rel=1e-12)
    assert result["devices"] == [dict(row) for row in fedprox.load_run(run).evaluation]
    code, text = command("evaluate", run, "--data", "synthetic", "-s", "data.seed=1", "--json")
    assert code == 0
    other = json.loads(text)
    assert other["examples"] != result["examples"]


def test_a_run_made_on_a_cluster_is_evaluated_here_on_all_cores(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = fedprox.load_run(run).config.to_dict()
    config["engine"] = {"name": "ray", "address": "10.0.0.1:6379", "workers": 1000}
    (tmp_path / "run" / "config.toml").write_text(fedprox.Config.from_dict(config).to_toml())
    counts: list[int] = []

    def workers(count: int) -> Workers:
        counts.append(count)
        return Workers(count)

    monkeypatch.setattr("fedprox.runs.evaluate.Workers", workers)
    assert evaluate(tmp_path / "run")["devices"] == evaluate(run)["devices"]
    assert counts == [0, 0]


def test_predict_agrees_with_numpy(run: Path, tmp_path: Path) -> None:
    population = synthetic(1.0, 1.0, 30, 0)
    params = fedprox.load_run(run).params
    expected = np.argmax(population.test.x @ params["weight"].T + params["bias"], axis=1)
    np.testing.assert_array_equal(predict(run, population.test.x), expected)
    np.savez(tmp_path / "new.npz", x=population.test.x[:4])
    code, text = command("predict", run, "--data", tmp_path / "new.npz")
    assert (code, text.split()) == (0, [str(label) for label in expected[:4]])


def run_on_table(folder: Path) -> Path:
    """Write a table whose columns have names of their own, and train on it."""
    random = np.random.default_rng(0)
    rows = [f"{left:.3f},{right:.3f}" for left, right in random.normal(size=(120, 2))]
    kinds = ["cat, small" if float(row.split(",")[0]) > 0 else "dog" for row in rows]
    lines = [
        f'{row},"{kind}",site {number % 4},{number}' for number, (row, kind) in enumerate(zip(rows, kinds, strict=True))
    ]
    (folder / "own.csv").write_text("\n".join(["age,size,kind,site,id", *lines]) + "\n")
    columns = {"x_columns": ["size", "age"], "y_column": "kind", "device_column": "site"}
    settings = {
        "rounds": 4,
        "solver": {"epochs": 2, "learning_rate": 0.5},
        "devices": {"per_round": 4},
        "data": {"name": "csv", "path": str(folder / "own.csv"), **columns},
    }
    fedprox.train(settings, out=folder / "run")
    return folder / "run"


def test_tables_are_read_by_the_column_names_of_the_run(tmp_path: Path) -> None:
    own = run_on_table(tmp_path)
    (tmp_path / "new.csv").write_text("id,age,size,note\n7,3.0,-0.1,a\n8,-3.0,0.2,b\n")
    code, text = command("predict", own, "--data", tmp_path / "new.csv")
    assert (code, text.splitlines()) == (0, ["cat, small", "dog"])
    polars.read_csv(tmp_path / "new.csv").write_parquet(tmp_path / "new.parquet")
    assert command("predict", own, "--data", tmp_path / "new.parquet") == (code, text)
    assert command("predict", own, "--data", tmp_path / "new.csv", "--out", tmp_path / "labels.csv")[0] == 0
    assert list(csv.reader((tmp_path / "labels.csv").read_text().splitlines())) == [["label"], ["cat, small"], ["dog"]]
    shutil.copy(tmp_path / "own.csv", tmp_path / "again.csv")
    code, text = command("evaluate", own, "--data", tmp_path / "again.csv", "--json")
    assert (code, json.loads(text)["examples"]) == (0, 120)
    assert json.loads(text)["train_loss"] == pytest.approx(evaluate(own)["train_loss"])


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        ("age,kind\n1.0,dog\n", [], "there must be a column 'size' for x; got age, kind"),
        ("age,size\n1.0,\n", [], "x must have a number in every row; column 'size', row 0 has none"),
        ("age,size\n1.0,2.0\n", ["--out", "labels.txt"], "`--out` must end in .csv or .npy; got 'labels.txt'"),
    ],
)
def test_a_table_that_does_not_fit(tmp_path: Path, table: str, options: list[str], sentence: str) -> None:
    own = run_on_table(tmp_path)
    (tmp_path / "new.csv").write_text(table)
    code, text = command("predict", own, "--data", tmp_path / "new.csv", *options)
    assert code == 2
    assert sentence in text


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.zeros((2, 3)), r"x must have examples of shape \(60,\), as the run's data; got \(3,\)"),
        (np.zeros(60), r"x must have rows and features"),
    ],
)
def test_predict_refuses_what_does_not_fit(run: Path, x: np.ndarray, sentence: str) -> None:
    with pytest.raises(fedprox.FedProxError, match=sentence):
        predict(run, x)


def test_data_that_cannot_be_read_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_text("no")
    for name, sentence in (("none.npz", "does not exist"), ("bad.npz", "is not a readable npz")):
        for action in ("predict", "evaluate"):
            code, text = command(action, run, "--data", tmp_path / name)
            assert code == 2
            assert sentence in text


def test_watch_tells_how_runs_stand(run: Path, tmp_path: Path) -> None:
    assert [state.state for state in states(run)] == ["finished"]
    config = fedprox.Config.from_dict({"rounds": 9})
    folder = RunFolder(tmp_path / "new", config)
    folder.metrics({"round": 0, "train_loss": 2.0, "test_accuracy": None, "seconds": 0.1})
    folder.metrics({"round": 3, "train_loss": 1.0, "test_accuracy": None, "seconds": 3.0})
    (state,) = states(tmp_path / "new")
    assert (state.state, state.round, state.rounds, state.seconds_left) == ("running", 3, 9, 6.0)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        folder.close()

    seen = [current[0].state for current in follow(tmp_path / "new", sleep=sleep)]
    assert seen == ["running", "interrupted"]
    assert len(naps) == 1
    code, text = command("watch", tmp_path / "new")
    assert code == 0
    assert text.splitlines()[0] == "new: interrupted, round 3 of 9, train loss 1.0000, test accuracy -"


def test_the_table_fits_a_narrow_terminal(run: Path) -> None:
    result = CliRunner().invoke(app, ["watch", "--once", str(run)], env={"COLUMNS": "80"})
    heading, line = result.output.splitlines()[:2]
    assert heading.split() == ["run", "state", "round", "train", "loss", "test", "acc", "loss", "so", "far", "left"]
    assert line.split()[:3] == ["run", "finished", "3/3"]
    assert "…" not in result.output


def test_watch_follows_a_running_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = ["synthetic-1-1", "-s", "rounds=12", "-s", "solver.epochs=1", "--out", str(out)]
    with subprocess.Popen([sys.executable, "-m", "fedprox", "run", *config], stdout=subprocess.DEVNULL) as process:
        while not (out / "metrics.jsonl").exists():
            assert process.poll() is None
        code, text = command("watch", out)
    assert code == 0
    assert text.splitlines()[-1].startswith("run: finished, round 12 of 12")


def test_a_curve_that_breaks_off_is_drawn_in_pieces() -> None:
    path = curve_svg([0, 1, 2, 3], [1.0, 2.0, None, 0.0], "loss").split('<path d="')[2].split('"')[0]
    assert path.count("M") == 2
    assert sparkline([]) == ""
    assert sparkline([None, None]) == "!!"


def test_no_colour_and_no_terminal_give_plain_text(run: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "", "TERM": "xterm-256color"}
    for arguments in (["watch", "--once", str(run)], ["run", "--help"], ["watch", str(run)]):
        done = subprocess.run(
            [sys.executable, "-m", "fedprox", *arguments], capture_output=True, check=True, env=environment
        )
        assert b"\x1b[" not in done.stdout + done.stderr
