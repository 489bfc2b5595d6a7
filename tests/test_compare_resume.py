"""A comparison that was interrupted continues where it was; what is complete is not run again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.experiments.compare import compare, plan, variant

pytestmark = pytest.mark.usefixtures("runs_here")

SETTINGS = {"rounds": 3, "data": {"devices": 8}, "devices": {"per_round": 3}, "solver": {"epochs": 1}}


def test_an_interrupted_comparison_resumes(tmp_path: Path) -> None:
    out = tmp_path / "both"
    half = {**SETTINGS, "method": {"name": "fedavg"}, "checkpoint": {"every": 1}}
    fedprox.train(half, out=out / "fedavg" / "seed-0", callbacks=[lambda progress: progress.round == 1])
    settings = {**SETTINGS, "checkpoint": {"every": 1}}
    with pytest.raises(fedprox.FedProxError, match=r"is not empty; .* or continue the comparison in it with --resume"):
        compare(settings, ["fedavg", "fedprox:mu=1"], out=out)
    seen = []
    compare(settings, ["fedavg", "fedprox:mu=1"], out=out, resume=True, on_event=seen.append)
    assert min(event.round for event in seen if event.job.name == "fedavg") > 1  # from its checkpoint
    whole = compare(settings, ["fedavg", "fedprox:mu=1"], out=tmp_path / "whole")
    again = compare(
        settings, ["fedavg", "fedprox:mu=1"], out=out, resume=True, on_event=lambda event: pytest.fail("it is complete")
    )
    for row, other in zip(whole.table(), again.table(), strict=True):
        assert row["train_loss"] == other["train_loss"]
    with pytest.raises(fedprox.FedProxError, match=r"solver\.epochs"):
        compare({**settings, "solver": {"epochs": 2}}, ["fedavg"], out=out, resume=True)


@pytest.mark.parametrize(
    ("methods", "more", "problem"),
    [
        ("fedavg", {}, "`methods` must be a list of names and Method objects, or a dict; got 'fedavg'"),
        (None, {}, "`methods` must be a list .*; got None"),
        ([], {}, "`methods` must hold at least one method"),
        ([3], {}, "`methods` must hold names, such as 'fedprox:mu=0.1', or Method objects; got 3"),
        ({1: "fedavg"}, {}, r"`methods` must have text as labels; got \[1\]"),
        (["fedavg"], {"seeds": 0}, "`seeds` must be an integer >= 1; got 0"),
        (["fedavg"], {"seeds": [1, 2]}, r"`seeds` must be an integer >= 1; got \[1, 2\]"),
        (["fedavg"], {"workers": -1}, "`workers` must be an integer >= 0; got -1"),
        (["fedavg"], {"out": None}, "`out` must be the path of a folder; got None"),
    ],
)
def test_arguments_from_python_of_another_kind(tmp_path: Path, methods: object, more: dict, problem: str) -> None:
    with pytest.raises(fedprox.FedProxError, match=problem):
        compare(SETTINGS, methods, **{"out": tmp_path / "none", **more})
    assert not (tmp_path / "none").exists()


def test_the_command_writes_picture_and_report_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["-s", "rounds=1", "-s", "solver.epochs=1", "-m", "fedavg", "-m", "fedprox:mu=1"]
    assert CliRunner().invoke(app, ["compare", "synthetic-iid", *small, "--resume"]).exit_code == 2
    done = CliRunner().invoke(app, ["compare", "synthetic-iid", *small, "--out", "both"])
    assert done.exit_code == 0, done.output
    assert {"comparison.pdf", "comparison.png", "report.html", "table.json"} <= {
        path.name for path in (tmp_path / "both").iterdir()
    }
    assert f"python -m webbrowser {(tmp_path / 'both' / 'report.html').as_uri()}" in done.output
    again = CliRunner().invoke(app, ["compare", "synthetic-iid", *small, "--out", "both", "--resume", "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["report"] == "both/report.html"


def test_an_interrupt_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedprox.experiments.compare.compare", interrupted)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["compare", "synthetic-iid", "-m", "fedavg", "--out", "both"])
    assert done.exit_code == 130
    assert done.stderr == "fedprox: interrupted; the same command with --out both --resume continues\n"


def test_a_mu_of_the_config_that_does_not_count_is_told(tmp_path: Path) -> None:
    settings = {**SETTINGS, "method": {"mu": 0.5}}
    with pytest.warns(UserWarning, match=r"fedprox runs with method.mu = 0.0, .* for the 0.5 .* write fedprox:mu=0.5$"):
        plan(settings, [variant("fedprox")], 1, tmp_path)
    plan(settings, [variant("fedavg"), variant("fedprox:mu=0")], 1, tmp_path)  # without a warning
