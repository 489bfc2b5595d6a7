"""A run folder says what really ran: parts that were given as objects from Python."""

import dataclasses
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.core.errors import RunFolderError
from fedprox.methods import Method
from fedprox.models import mlp, softmax_regression
from fedprox.population import Population
from fedprox.population.folder import open_population
from fedprox.population.writer import save_population
from fedprox.report.verdict import verdict
from fedprox.runs.evaluate import evaluate, predict
from fedprox.runs.reader import find_runs
from fedprox.runs.replaced import describe_data
from fedprox.runs.seed_groups import group_runs
from fedprox.theory import certify

PLAN = {"rounds": 2, "solver": {"epochs": 1}, "devices": {"per_round": 3}}


@dataclasses.dataclass(frozen=True)
class Half(Method):
    """Goes half of the way."""

    strength: float = 0.5

    def merge(self, server, params, averaged, summed):
        return {name: params[name] + self.strength * (averaged[name] - params[name]) for name in params}, server


@pytest.fixture(scope="module")
def mine() -> Population:
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 4)).astype(np.float32)
    return Population.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(80) % 5)


@pytest.fixture(scope="module")
def run(mine: Population, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("replaced") / "run"
    fedprox.train(PLAN, population=mine, model=mlp(4, 2), out=out)
    return out


def test_what_was_given_is_recorded_from_the_start(mine: Population, tmp_path: Path) -> None:
    seen: dict = {}

    def look(progress: fedprox.Progress) -> None:
        seen.update(tomllib.loads((tmp_path / "run" / "config.toml").read_text())["replaced"])

    method = Half("half", strength=0.25)
    result = fedprox.train(PLAN, population=mine, method=method, out=tmp_path / "run", callbacks=[look])
    assert seen["method"] == {"object": f"{__name__}:Half", "name": "half", "settings": {"strength": 0.25}}
    assert (seen["data"]["devices"], seen["data"]["samples"]) == (5, 80)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["replaced"] == seen
    assert result.summary["replaced"] == seen == fedprox.load_run(tmp_path / "run").replaced


def test_a_model_is_recorded_with_its_shapes(run: Path) -> None:
    shapes = fedprox.load_run(run).replaced["model"]["parameters"]
    assert 4 in shapes[next(name for name in shapes if name.endswith("weight"))]
    assert "replaced" not in fedprox.train({**PLAN, "rounds": 1}).summary


def test_a_stored_population_has_the_digest_of_the_one_in_memory(mine: Population, tmp_path: Path) -> None:
    stored = open_population(save_population(mine, tmp_path / "mine"))
    assert describe_data(stored)["sha256"] == describe_data(mine)["sha256"]


def test_resume_takes_the_recorded_parts_alone(run: Path, mine: Population) -> None:
    longer, other = {**PLAN, "rounds": 3}, Population(mine.train, mine.test, 3)
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
    for given, sentence in (
        (
            {},
            r"was made with an object from Python as its data \(Population \(5 devices, .* `population=`",
        ),
        ({"population": mine}, r"was made with an object from Python as its model \(mlp\); .* `model=`"),
        ({"population": other, "model": mlp(4, 3)}, r"as its data, whose sha256 is .*; got one with"),
        ({"population": mine, "model": mlp(4, 2, 7)}, r"as its model, whose parameters is"),
        (
            {"population": mine, "model": mlp(4, 2), "method": Half("half")},
            r"the method that its config names; got",
        ),
    ):
        with pytest.raises(RunFolderError, match=sentence):
            fedprox.train(longer, out=run, resume=True, **given)
    code = CliRunner().invoke(app, ["run", str(run / "config.toml"), "--out", str(run), "--resume"])
    assert code.exit_code == 2
    assert "[replaced]" in code.output
    assert {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()} == before
    with pytest.raises(RunFolderError, match=r"the run of this config was made with an object from Python as its data"):
        fedprox.train(run / "config.toml", model=mlp(60, 10))
    again = fedprox.train(run / "config.toml", population=mine, model=mlp(4, 2))
    assert again.history[-1]["train_loss"] == fedprox.load_run(run).last["train_loss"]


def test_a_run_is_resumed_with_its_parts(run: Path, mine: Population, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedprox.train({**PLAN, "rounds": 1}, population=mine, model=mlp(4, 2), out=out)
    fedprox.train(PLAN, population=mine, model=mlp(4, 2), out=out, resume=True)
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_evaluate_and_predict_need_the_parts(run: Path, mine: Population) -> None:
    result = evaluate(run, mine, model=mlp(4, 2))
    assert result["test_accuracy"] == fedprox.load_run(run).last["test_accuracy"]
    for given in ({}, {"population": mine}):
        with pytest.raises(RunFolderError, match="from Python"):
            evaluate(run, **given)
        with pytest.raises(RunFolderError, match="from Python"):
            predict(run, mine.test.x, **given)
    with pytest.raises(RunFolderError, match=r"whose object is|whose name is"):
        evaluate(run, mine, model=softmax_regression(4, 2))
    assert predict(run, mine.test.x, model=mlp(4, 2)).shape == (len(mine.test),)
    for command in (["evaluate", str(run)], ["theory", "report", str(run)]):
        answer = CliRunner().invoke(app, command)
        assert answer.exit_code == 2


def test_theory_replays_with_the_recorded_parts_alone(mine: Population, tmp_path: Path) -> None:
    plan = {**PLAN, "devices": {"per_round": 3, "sampling": "proportional"}, "method": {"mu": 1.0}}
    fedprox.train(plan, population=mine, out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="was made with an object from Python as its data"):
        certify(tmp_path / "run")
    with pytest.raises(RunFolderError, match="whose sha256 is"):
        certify(tmp_path / "run", population=Population(mine.train, mine.test, 3))
    assert len(certify(tmp_path / "run", population=mine).rounds) == 2


def test_labels_tell_what_ran(mine: Population, tmp_path: Path) -> None:
    fedprox.train(PLAN, population=mine, out=tmp_path / "plain")
    fedprox.train(PLAN, population=mine, method=Half("half", strength=0.25), out=tmp_path / "half")
    fedprox.train(PLAN, out=tmp_path / "config")
    groups = group_runs(find_runs([tmp_path]))
    assert len(groups) == 3
    text = " ".join(group.label for group in groups)
    assert "half (" in text
    assert "strength=0.25" in text
    assert "Population (5 devices" in text
    assert "half" in " ".join(verdict(groups))
