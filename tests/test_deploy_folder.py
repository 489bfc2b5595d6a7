"""The folder of a run on real devices says what ran, and is not taken for a run on other data."""

import json

import pytest
from flwr.common.config import parse_config_args
from typer.testing import CliRunner

import fedprox
from fake_federation import FakeGrid
from fedprox.cli import app
from fedprox.core.errors import RunFolderError
from fedprox.deploy.trial import _quoted
from fedprox.models import softmax_regression
from fedprox.runs.evaluate import evaluate, predict
from test_deploy_loop import Half
from test_deploy_parts import POPULATION, build_config, run

OTHER = {"rounds": 1, "data": {"devices": 4}}


@pytest.fixture(scope="module")
def own_data(tmp_path_factory):
    """A run whose devices have other data than its config names."""
    out = tmp_path_factory.mktemp("deployed") / "run"
    config = build_config(**OTHER)
    with pytest.MonkeyPatch.context() as patch:
        run(config, FakeGrid(config, POPULATION), out, patch, method=Half(), model_source="federation.task:load_model")
    return out


def test_objects_of_the_app_are_recorded(own_data, tmp_path, monkeypatch):
    saved = fedprox.load_run(own_data)
    assert saved.replaced == {"method": {"object": "test_deploy_loop:Half", "name": "half"}}
    assert saved.summary["replaced"] == saved.replaced
    deployed = saved.summary["deployed"]
    assert deployed["train_samples"] == [24] * 4
    assert deployed["test_samples"] == [3] * 4
    assert deployed["model"]["object"] == "federation.task:load_model"
    assert deployed["model"]["parameters"] == {"bias": [3], "weight": [3, 5]}
    config = build_config(**OTHER)
    with pytest.raises(RunFolderError, match="was made with an object from Python as its method"):
        run(config, FakeGrid(config, POPULATION), own_data, monkeypatch, resume=True)
    same = fedprox.methods.build(config.method)
    run(config, FakeGrid(config, POPULATION), tmp_path / "same", monkeypatch, method=same)
    assert fedprox.load_run(tmp_path / "same").replaced == {}


def test_data_that_the_devices_did_not_have_are_not_taken_for_theirs(own_data):
    sentence = r"was made on real devices, and `data.name` = 'synthetic' does not give their data here: device 0 has "
    with pytest.raises(RunFolderError, match=sentence):
        evaluate(own_data)
    with pytest.raises(RunFolderError, match=sentence):
        predict(own_data, POPULATION.test.x)
    for command in ("evaluate", "theory"):
        assert CliRunner().invoke(app, [command, str(own_data)]).exit_code == 2
    model = softmax_regression(5, POPULATION.classes)
    rows = evaluate(own_data, POPULATION, model=model)["devices"]
    recorded = [json.loads(line) for line in (own_data / "evaluation.jsonl").read_text().splitlines()]
    for ours, theirs in zip(rows, recorded, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
    assert len(predict(own_data, POPULATION.test.x, model=model)) == 12


def test_data_of_the_config_are_evaluated_where_the_devices_had_them(tmp_path, monkeypatch):
    config = build_config(**OTHER)
    run(config, FakeGrid(config), tmp_path / "run", monkeypatch)
    assert evaluate(tmp_path / "run")["train_loss"] == pytest.approx(
        fedprox.load_run(tmp_path / "run").last["train_loss"], rel=1e-6
    )


def test_a_folder_without_the_personal_parameters_is_not_evaluated(tmp_path, monkeypatch):
    config = build_config(**OTHER, personal={"parameters": ["bias"]})
    run(config, FakeGrid(config, folder=tmp_path / "devices"), tmp_path / "run", monkeypatch)
    for ask in (evaluate, lambda path: predict(path, POPULATION.test.x)):
        with pytest.raises(RunFolderError, match=r"which keep `personal.parameters`, so the folder has"):
            ask(tmp_path / "run")


def test_settings_with_quotation_marks_survive_the_run_config():
    text = """a.b="x y" 'm.n=["q", "r"]' back\\\\slash"""
    assert parse_config_args([f"out={_quoted('x')} set={_quoted(text)}"]) == {"out": "x", "set": text}
