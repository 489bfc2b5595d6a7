"""Methods with a second, personal model on every device: how it is trained, measured, saved and read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from conftest import population_of
from fedprox.cli import app
from fedprox.core.errors import ConfigError
from fedprox.methods import ditto, pfedme
from fedprox.population.set_aside import set_aside
from fedprox.report import write_report_on
from fedprox.runs.evaluate import evaluate, predict

POPULATION = population_of([7, 23, 4, 31, 12, 9], test=3)
BASE: dict[str, Any] = {
    "rounds": 3,
    "solver": {"epochs": 2, "learning_rate": 0.05},
    "devices": {"per_round": 2, "stragglers": 0.5},
}
PERSONAL = ("ditto", "pfedme")


def run(name: str, population: Any = POPULATION, out: Any = None, **changes: Any) -> fedprox.Result:
    settings = changes.pop("method", {})
    config = {**BASE, "method": {"name": name, **settings}, **changes}
    return fedprox.train(config, population=population, out=out)


def same(one: Any, other: Any) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def correct(model: Any, device: int, population: Any, part: str = "test") -> tuple[int, int]:
    x, y = getattr(population, part).of(device)
    return int(((x @ model["weight"].T + model["bias"]).argmax(axis=1) == y).sum()), len(y)


@pytest.mark.parametrize("personal_mu", [0.0, 0.1, 5.0])
def test_dittos_shared_model_is_that_of_fedprox_bit_for_bit(personal_mu):
    mine = run("ditto", method={"mu": 0.3, "personal_mu": personal_mu})
    assert same(mine.params, run("fedprox", method={"mu": 0.3}).params)


def test_without_a_pull_a_personal_model_of_ditto_is_trained_alone():
    """A device that takes part in every round continues where it stopped, whatever the others do."""
    alone = population_of([12])
    settings: Any = {"method": {"personal_mu": 0.0}, "devices": {"per_round": 1}}
    ended = run("ditto", population=alone, **settings)
    plain = run("fedprox", population=alone, devices={"per_round": 1})
    assert same(ended.personal[0], plain.params)


def test_a_strong_pull_keeps_the_personal_models_of_ditto_near_the_shared_one():
    spread = {}
    for personal_mu in (0.0, 10.0):
        result = run("ditto", method={"personal_mu": personal_mu}, rounds=6, devices={"per_round": 6})
        models = [model["weight"] for model in result.personal.values()]
        spread[personal_mu] = max(np.abs(each - result.params["weight"]).max() for each in models)
    assert spread[10.0] < 0.5 * spread[0.0]


def test_pfedme_with_a_full_step_is_fedprox_bit_for_bit():
    mine = run("pfedme", method={"personal_mu": 2.0})
    assert same(mine.params, run("fedprox", method={"mu": 2.0}).params)
    assert not same(mine.params, run("pfedme", method={"personal_mu": 2.0, "server_learning_rate": 0.5}).params)


@pytest.mark.parametrize("name", PERSONAL)
def test_personal_models_are_measured_beside_the_shared_one(name, tmp_path):
    result = run(name, method={"personal_mu": 0.5}, out=tmp_path / "run")
    assert set(result.personal) < set(range(6))  # not every device has taken part
    models = {device: result.personal.get(device, result.params) for device in range(6)}
    right = [correct(model, device, POPULATION) for device, model in models.items()]
    last = result.history[-1]
    assert last["personal_test_accuracy"] == pytest.approx(sum(a for a, _ in right) / sum(b for _, b in right))
    shared = [correct(result.params, device, POPULATION) for device in range(6)]
    assert last["test_accuracy"] == pytest.approx(sum(a for a, _ in shared) / sum(b for _, b in shared))
    assert result.history[0]["personal_test_accuracy"] == result.history[0]["test_accuracy"]  # nobody has one yet
    rows = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
    for row, (good, count) in zip(rows, right, strict=True):
        assert row["personal_test_accuracy"] == pytest.approx(good / count)
    assert any(row["personal_train_loss"] != row["train_loss"] for row in rows)
    page = fedprox.load_run(tmp_path / "run")
    assert "personal_test_accuracy" in write_report_on([page], tmp_path / "r.html", "Report").read_text()


def test_validation_samples_are_measured_with_the_models_of_their_devices():
    used = set_aside(POPULATION, validation=0.3)
    result = run("ditto", population=used, method={"personal_mu": 0.5}, devices={"per_round": 6})
    right = [correct(result.personal[device], device, used, "validation") for device in range(6)]
    last = result.history[-1]
    assert last["personal_validation_accuracy"] == pytest.approx(sum(a for a, _ in right) / sum(b for _, b in right))
    partly = run("fedavg", population=used, personal={"parameters": ["bias"]}, devices={"per_round": 6})
    models = [{**partly.params, **partly.personal[device]} for device in range(6)]
    right = [correct(model, device, used, "validation") for device, model in enumerate(models)]
    last = partly.history[-1]
    assert last["validation_accuracy"] == pytest.approx(sum(a for a, _ in right) / sum(b for _, b in right))
    shared = [correct(partly.params, device, used, "validation")[0] for device in range(6)]
    assert sum(shared) != sum(a for a, _ in right)


def test_a_sweep_chooses_personal_mu_by_the_personal_models(tmp_path):
    axes = {"method.personal_mu": [0.01, 100.0]}
    settings = {**BASE, "rounds": 10, "method": {"name": "ditto"}, "data": {"devices": 6, "validation": 0.3}}
    table = fedprox.sweep(settings, axes, out=tmp_path / "sweep", workers=1).table()
    assert table[0]["validation_accuracy"] == table[1]["validation_accuracy"]
    assert table[0]["personal_validation_accuracy"] > table[1]["personal_validation_accuracy"]


@pytest.mark.parametrize("name", PERSONAL)
def test_with_personal_parameters_too(name):
    result = run(name, personal={"parameters": ["bias"]})
    assert result.history[-1]["personal_test_accuracy"] is not None
    model = next(iter(result.personal.values()))
    assert not np.array_equal(model["weight"], result.params["weight"])
    assert not np.array_equal(model["bias"], result.params["bias"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Any:
    config = {"rounds": 2, "data": {"devices": 5}, "devices": {"per_round": 2}, "method": {"name": "ditto"}}
    return fedprox.train({**config, "solver": {"epochs": 1}}, out=tmp_path_factory.mktemp("ditto") / "run")


def test_evaluate_and_predict_know_the_personal_models(saved, tmp_path):
    found = evaluate(saved.path)
    assert found["test_accuracy"] == pytest.approx(saved.history[-1]["test_accuracy"])
    recorded = fedprox.load_run(saved.path).evaluation
    assert [row["personal_test_loss"] for row in found["devices"]] == [row["personal_test_loss"] for row in recorded]
    device, model = next(iter(saved.personal.items()))
    assert evaluate(saved.path, device=device)["train_loss"] != found["train_loss"]
    x = np.random.default_rng(0).normal(size=(200, 60)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    for option, used in (([], saved.params), (["--device", str(device)], model)):
        command = ["predict", str(saved.path), "--data", str(tmp_path / "x.npy"), *option]
        labels = np.array(CliRunner().invoke(app, command).output.split(), int)
        scores = x @ used["weight"].T + used["bias"]
        chosen = scores[np.arange(len(x)), labels]  # some samples have two labels with nearly the same score
        np.testing.assert_allclose(chosen, scores.max(axis=1), atol=1e-5)
        assert (labels == scores.argmax(axis=1)).mean() > 0.95
    with pytest.raises(ConfigError, match=r"`device` must be the number of a device of .* from 0 to 4; got 5"):
        predict(saved.path, x, device=5)


@pytest.mark.parametrize(("name", "rule"), [("ditto", ">= 0"), ("pfedme", "> 0")])
def test_a_personal_mu_out_of_range_is_refused(name, rule):
    with pytest.raises(ConfigError, match=rf"`method.personal_mu` must be a number {rule}; got -1.0"):
        run(name, method={"personal_mu": -1.0})
    with pytest.raises(ConfigError, match=rf"`method.personal_mu` must be a number {rule}; got -1.0"):
        {"ditto": ditto, "pfedme": pfedme}[name](personal_mu=-1.0)


def test_a_personal_mu_that_sgd_cannot_follow_is_warned_of():
    with pytest.warns(UserWarning, match=r"times `method.personal_mu` is 2 or more; got 0.05 \* 50.0"):
        run("pfedme", method={"personal_mu": 50.0}, rounds=1)
