"""A run folder says what really ran: parts that were given as objects from Python."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox import solvers
from fedprox.cli import app
from fedprox.core.errors import ConfigError, RunFolderError
from fedprox.engines.by_name import local_engine
from fedprox.methods import Method
from fedprox.methods.merging import MergeRule
from fedprox.methods.mu import ConstantMu, DriftMu
from fedprox.models import mlp, softmax_regression
from fedprox.population import Population
from fedprox.population.folder import open_population
from fedprox.population.writer import save_population
from fedprox.report.experiment_line import experiment_line
from fedprox.report.verdict import verdict
from fedprox.runs.evaluate import evaluate, predict
from fedprox.runs.reader import find_runs
from fedprox.runs.replaced import describe_data, part_label
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


def largest(view):
    return view.sizes.argsort()[::-1][: view.per_round]


def smallest(view):
    return view.sizes.argsort()[: view.per_round]


def one_step(view):
    return np.ones(len(view.cohort), np.int64)


def halved(learning_rate, round, rounds):
    return learning_rate / 2**round


def never(history):
    return False


def hits(labels, predictions):
    return int((labels == predictions).sum())


class Watching:
    """The local engine."""

    def __init__(self, run):
        self.inner = local_engine(run)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@dataclasses.dataclass(frozen=True)
class First(MergeRule):
    name: str = "first"
    needs_every_reply: bool = True

    def merge(self, replies, weights):
        return replies[0]


OBJECTS: dict[str, Any] = {
    "sampler": largest,
    "systems": one_step,
    "schedule": halved,
    "stopping_rule": never,
    "merge_rule": First(),
    "solver": solvers.sgd(0.5),
    "mu_controller": ConstantMu(0.25),
    "engine": Watching,
    "metrics": {"hits": hits},
}
OTHERS: dict[str, Any] = {
    "sampler": smallest,
    "systems": largest,
    "schedule": smallest,
    "stopping_rule": hits,
    "merge_rule": MergeRule(),
    "solver": solvers.sgd(0.9),
    "mu_controller": DriftMu.start(learning_rate=0.1),
    "metrics": {"misses": hits},
}


def seen(progress):
    return None


@pytest.fixture(scope="module")
def every_object(mine: Population, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("objects") / "run"
    result = fedprox.train(PLAN, population=mine, out=out, callbacks=[seen], **OBJECTS)
    assert all(row["device"] == [4, 3, 2] for row in result.devices)  # all have as many samples
    assert all(row["steps"] == [1, 1, 1] for row in result.devices)
    assert result.history.column("learning_rate") == [0.005, 0.005, 0.0025]
    assert result.history.column("mu") == [0.25] * 3
    assert "hits" in result.history[-1]
    return out


def test_every_kind_of_object_is_recorded(every_object: Path) -> None:
    replaced = fedprox.load_run(every_object).replaced
    assert {part: part_label(record).partition(" ")[0] for part, record in replaced.items() if part != "data"} == {
        "solver": "sgd",
        "mu": "ConstantMu",
        "sampler": "largest",
        "systems": "one_step",
        "merge": "first",
        "schedule": "halved",
        "stopping": "never",
        "engine": "Watching",
        "metrics": "hits",
    }
    assert replaced["sampler"]["object"] == f"{__name__}:largest"
    summary = json.loads((every_object / "summary.json").read_text())
    assert summary["replaced"] == replaced
    assert summary["callbacks"] == [f"{__name__}:seen"]  # they replace nothing, and any may follow a resumed run


@pytest.mark.parametrize("argument", OTHERS)
def test_no_object_is_exchanged_on_resume(every_object: Path, mine: Population, argument: str) -> None:
    before = {file.name: file.read_bytes() for file in every_object.iterdir() if file.is_file()}
    longer = {**PLAN, "rounds": 3}
    for given in ({**OBJECTS, argument: OTHERS[argument]}, {k: v for k, v in OBJECTS.items() if k != argument}):
        with pytest.raises(RunFolderError, match="was made with an object from Python as its"):
            fedprox.train(longer, population=mine, out=every_object, resume=True, **given)
    assert {file.name: file.read_bytes() for file in every_object.iterdir() if file.is_file()} == before


def test_a_run_with_every_kind_of_object_is_resumed_on_any_engine(mine: Population, tmp_path: Path) -> None:
    whole = fedprox.train({**PLAN, "rounds": 3}, population=mine, **OBJECTS)
    fedprox.train(PLAN, population=mine, out=tmp_path / "run", **OBJECTS)
    elsewhere = {name: given for name, given in OBJECTS.items() if name != "engine"}
    result = fedprox.train({**PLAN, "rounds": 3}, population=mine, out=tmp_path / "run", resume=True, **elsewhere)
    for name, array in whole.params.items():
        np.testing.assert_array_equal(result.params[name], array)


def test_reports_name_what_ran(every_object: Path, mine: Population, tmp_path: Path) -> None:
    fedprox.train({**PLAN, "seed": 1}, population=mine, out=tmp_path / "plain")
    groups = group_runs([fedprox.load_run(every_object), fedprox.load_run(tmp_path / "plain")])
    text = " ".join(group.label for group in groups)
    for words in ("devices.sampling=largest", "systems.model=one_step", "solver.schedule=halved", "merge.rule=first"):
        assert words in text
    line = experiment_line(groups)
    assert line.startswith("data: Population (5 devices")
    assert "Synthetic" not in line
    assert "0% stragglers, one_step" in line


def test_compare_and_sweep_take_every_kind_of_object(mine: Population, tmp_path: Path) -> None:
    told: list[int] = []
    given: dict[str, Any] = {**OBJECTS, "callbacks": [lambda progress: told.append(progress.round)]}
    both = fedprox.compare(PLAN, ["fedavg", Half("half")], out=tmp_path / "two", population=mine, **given)
    assert [row["hits"] is not None for row in both.table()] == [True, True]
    assert told == [0, 1, 2, 0, 1, 2]
    swept = fedprox.sweep(PLAN, {"seed": [0, 1]}, out=tmp_path / "grid", population=mine, **given)
    assert not swept.failed
    with pytest.raises(RunFolderError, match="was made with an object from Python as its sampler"):
        fedprox.sweep(PLAN, {"seed": [0]}, out=tmp_path / "grid", population=mine, **{**OBJECTS, "sampler": smallest})
    with pytest.raises(ConfigError, match=r"objects must be given as one of .*; got 'samplr'; did you mean `sampler`"):
        fedprox.sweep(PLAN, {"seed": [0]}, out=tmp_path / "third", samplr=largest)


def test_objects_of_the_wrong_kind_are_refused(mine: Population) -> None:
    for given, sentence in (
        ({"sampler": 3}, "`sampler` must be a function; got 3"),
        ({"stopping_rule": "never"}, "`stopping_rule` must be a function; got 'never'"),
        ({"merge_rule": max}, "`merge.rule` must name a MergeRule"),
        ({"engine": 3}, "`engine.name` must name an engine"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            fedprox.train(PLAN, population=mine, **given)
