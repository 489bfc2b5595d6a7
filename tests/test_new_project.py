"""A new Flower app: it can be imported, starts at chance, learns in three rounds, and simulates what it is made of."""

import contextlib
import importlib
import sys

import jax
import numpy as np
import pytest
from flwr.serverapp import ServerApp
from typer.testing import CliRunner

import fedprox
from fake_federation import FakeGrid
from fedprox import data
from fedprox.cli import app
from fedprox.config import Config
from fedprox.core.errors import ConfigError, DataError
from fedprox.deploy.device_data import DeviceData, together
from fedprox.deploy.new_project import write_project
from fedprox.deploy.settings import check_deployable, project_settings, run_settings
from test_deploy_parts import run


def test_settings_come_from_the_app_and_the_run(tmp_path, monkeypatch):
    write_project(tmp_path / "app", devices=5)
    with importable(tmp_path / "app", monkeypatch):
        config = run_settings(project_settings(tmp_path / "app"), {"set": "rounds=7 method.mu=auto measure.every=1"})
    assert (config.rounds, config.method.mu, config.deploy.devices) == (7, "auto", 5)
    check_deployable(config)
    with pytest.raises(ConfigError, match=r"`deploy.devices` must be the number of devices, at least 1; got 0"):
        check_deployable(Config())
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        project_settings(tmp_path)


@contextlib.contextmanager
def importable(folder, monkeypatch):
    """Find the modules of an app, and forget them afterwards: all apps have modules of the same names."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    for name in [name for name in sys.modules if name.split(".")[0] == "federation"]:
        del sys.modules[name]


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_new_project_is_a_flower_app_that_learns_in_three_rounds(framework, tmp_path, monkeypatch):
    if framework == "torch":
        pytest.importorskip("torch")
    folder = tmp_path / "app"
    files = write_project(folder, framework=framework)
    assert all("@" not in path.read_text().replace("@app", "") for path in files)
    assert {str(path.relative_to(folder)) for path in files} >= {"README.md", "fedprox.toml", "federation/task.py"}
    with importable(folder, monkeypatch):
        for path in folder.glob("federation/*.py"):
            importlib.import_module(f"federation.{path.stem}")
        config = run_settings(project_settings(folder), {"set": "rounds=3"})
        from federation import server_app, task  # type: ignore[import-not-found]

        assert isinstance(server_app.app, ServerApp)
        result = fedprox.train(config)
        first, last = result.history[0], result.history[-1]
        assert first["test_accuracy"] < 0.5  # four labels: an untrained model guesses
        assert last["test_accuracy"] > 0.85
        population = data.load(config)
        for device in range(3):
            own = task.load_data(config, device).population
            np.testing.assert_array_equal(population.train.of(device)[0], own.train.x)
            np.testing.assert_array_equal(population.test.of(device)[1], own.test.y)
        solver = task.load_solver(config) if framework == "torch" else None
        grid = FakeGrid(config, population, model=task.load_model(config), solver=solver)
        real = run(config, grid, tmp_path / "out", monkeypatch, solver=solver)
    assert real.history[-1]["train_loss"] == pytest.approx(last["train_loss"], rel=1e-6)
    with pytest.raises(ConfigError, match="must be empty"):
        write_project(folder)


def test_the_simulation_follows_what_is_edited_in_the_task(tmp_path, monkeypatch):
    folder = tmp_path / "app"
    write_project(folder, devices=2)
    task = folder / "federation" / "task.py"
    task.write_text(
        task.read_text()
        + """

def load_model(config):
    from fedprox.models import mlp
    return mlp(3, 2, 5)


def load_data(config, device):
    return DeviceData.from_arrays(device, x=[[0.0, 1.0, device]] * 4 + [[1.0, 0.0, 0.0]] * 4, y=[0] * 4 + [1] * 4)
"""
    )
    monkeypatch.chdir(folder)
    with importable(folder, monkeypatch):
        shown = CliRunner().invoke(app, ["run", "fedprox.toml", "-s", "rounds=1", "--out", "runs/one"])
        assert shown.exit_code == 0, shown.output
        population = data.load(Config.from_toml("runs/one/config.toml"))
    assert (population.devices, population.shape, population.classes) == (2, (3,), 2)
    assert population.train.of(1)[0][:, 2].max() == 1.0
    assert {np.size(leaf) for leaf in jax.tree.leaves(fedprox.load_run("runs/one").params)} == {15, 5, 10, 2}


def test_devices_with_examples_of_different_shapes_are_no_population():
    devices = [DeviceData.from_arrays(k, x=np.zeros((3, k + 1)), y=[0, 1, 0]) for k in range(2)]
    with pytest.raises(DataError, match=r"must have one shape; got \(1,\), \(2,\)"):
        together(devices)


def test_an_edited_task_that_returns_something_else():
    with pytest.raises(DataError, match="`load_data` must return a DeviceData; got tuple: use DeviceData"):
        together([(np.zeros((3, 1)), [0, 1, 0])])


def test_more_devices_a_round_than_there_are():
    with pytest.raises(ConfigError, match=r"`devices.per_round` must be an integer from 1 to 3, .*; got 5"):
        check_deployable(Config.from_dict({"deploy": {"devices": 3}, "devices": {"per_round": 5}}))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"the new app cannot be written to .*file/app: Not a directory$"):
        write_project(tmp_path / "file" / "app")
