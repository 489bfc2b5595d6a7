"""Personal and frozen parameters on real devices: kept there, never sent, and the same path as in a simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Error

import fedprox
from fake_federation import FakeGrid
from fedprox.config import Config
from fedprox.core.errors import OwnCodeError, RunError
from fedprox.core.files import read_tensors
from fedprox.deploy.message_records import WrongMessageError
from fedprox.deploy.messages import Instruction, PersonalVersion
from fedprox.deploy.personal_files import PersonalFiles
from fedprox.models import Model
from test_deploy_loop import Ditto, Last, same_path
from test_deploy_parts import POPULATION, build_config, run, zeros

BIAS = {"parameters": ["bias"]}


def personal_config(method=None, **sections):
    settings = {"devices": {"per_round": 2, "stragglers": 0.5}, "personal": BIAS, "rounds": 4, **sections}
    config = build_config(**settings)
    return config if method is None else Config.from_dict({**config.to_dict(), "method": {"name": method}})


def arrays_sent(grid):
    """Return the names of all arrays in messages to devices; replies are read by those names alone."""
    return {name for message in grid.sent for record in message.content.array_records.values() for name in record}


def kept_on_devices(folder):
    """Return the newest personal parameters of each device, all that its files have."""
    files = {}
    for file in sorted(folder.rglob("*.safetensors"), key=lambda file: int(file.stem.partition("-")[0])):
        files[int(file.parent.name)] = read_tensors(file)[0]
    return files


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fednova", "feddyn", "fedadam"])
def test_every_method_takes_the_same_path_as_the_simulation(method, tmp_path, monkeypatch):
    config = personal_config(method)
    grid = FakeGrid(config, POPULATION, folder=tmp_path / "devices")
    result = run(config, grid, tmp_path / "run", monkeypatch)
    simulated = fedprox.train(config, population=POPULATION)
    same_path(result, simulated, rel=1e-6)
    assert arrays_sent(grid) == {"weight"}
    for key in ("gradient_variance", "test_accuracy"):
        assert result.history[-1][key] == pytest.approx(simulated.history[-1][key], rel=1e-4), key
    kept = kept_on_devices(tmp_path / "devices")
    assert set(simulated.personal) <= set(kept)
    if method != "fedavg":  # whose stragglers train without being merged
        for device, own in simulated.personal.items():
            assert set(kept[device]) == {"bias"}
            assert np.array_equal(kept[device]["bias"], own["bias"])


@pytest.mark.parametrize("method", [Ditto(), Last()])
def test_methods_of_ones_own_have_personal_parameters_too(method, tmp_path, monkeypatch):
    config = personal_config()
    grid = FakeGrid(config, POPULATION, folder=tmp_path / "devices")
    result = run(config, grid, tmp_path / "run", monkeypatch, method=method)
    same_path(result, fedprox.train(config, population=POPULATION, method=method), rel=1e-6)


@pytest.mark.parametrize("method", ["fedprox", "feddane"])
def test_frozen_parameters_are_neither_trained_nor_sent(method, tmp_path, monkeypatch):
    config = personal_config(method, personal={"frozen": ["bias"]})
    grid = FakeGrid(config, POPULATION, folder=tmp_path / "devices")
    result = run(config, grid, tmp_path / "run", monkeypatch)
    same_path(result, fedprox.train(config, population=POPULATION), rel=1e-6)
    assert arrays_sent(grid) == {"weight"}
    assert not (tmp_path / "devices").exists()


def test_a_round_taken_again_after_a_resume_starts_from_the_parameters_that_counted(tmp_path, monkeypatch):
    config = personal_config(checkpoint={"every": 2})

    def dies(device, asked, answer):
        if isinstance(asked, Instruction) and asked.round == 4:
            raise KeyError("the server is killed in round 4; its last checkpoint is of round 2")
        return answer

    whole = run(config, FakeGrid(config, POPULATION, folder=tmp_path / "one"), tmp_path / "whole", monkeypatch)
    grid = FakeGrid(config, POPULATION, dies, folder=tmp_path / "devices")
    with pytest.raises(OwnCodeError, match="killed in round 4"):
        run(config, grid, tmp_path / "run", monkeypatch)
    grid = FakeGrid(config, POPULATION, folder=tmp_path / "devices")
    resumed = run(config, grid, tmp_path / "run", monkeypatch, resume=True)
    same_path(resumed, whole)


def test_a_device_that_has_lost_its_files_begins_anew_and_says_so(tmp_path, monkeypatch):
    config = personal_config(devices={"per_round": 4}, rounds=2)

    def loses(device, asked, answer):
        if device == 1 and isinstance(asked, Instruction) and asked.round == 1:
            for file in (tmp_path / "devices").rglob("1/*.safetensors"):
                file.unlink()
        return answer

    result = run(
        config, FakeGrid(config, POPULATION, loses, folder=tmp_path / "devices"), tmp_path / "run", monkeypatch
    )
    assert "lost_personal" not in result.devices[0]
    last = result.devices[1]
    assert dict(zip(last["device"], last["lost_personal"], strict=True)) == {0: False, 1: True, 2: False, 3: False}


def test_old_versions_are_removed_but_those_that_a_checkpoint_may_need(tmp_path):
    files = PersonalFiles(tmp_path)
    versions = ["", *(f"{round}-{round:016x}" for round in range(1, 7))]
    for round in range(1, 6):
        files.write(versions[round], versions[round - 1], {"bias": np.float32(round)}, oldest=round - 2)
    files.write("6-ffffffffffffffff", versions[5], {"bias": np.float32(9)}, oldest=4)  # is never merged
    assert sorted(file.stem[0] for file in tmp_path.iterdir()) == ["4", "5", "6"]
    assert files.read(versions[4], {"bias": np.float32(0)})["bias"] == 4
    assert files.read(versions[1], {"bias": np.float32(0)}) is None
    (tmp_path / f"{versions[5]}.safetensors").write_bytes(b"damaged")
    assert files.read(versions[5], {"bias": np.float32(0)}) is None


def test_a_late_write_removes_nothing_that_is_newer(tmp_path):
    files = PersonalFiles(tmp_path)
    for version in ("1-0000000000000001", "3-0000000000000003", "2-0000000000000002"):
        files.write(version, "", {"bias": np.float32(0)}, oldest=0)
    assert sorted(file.stem[0] for file in tmp_path.iterdir()) == ["2", "3"]


@pytest.mark.parametrize("names", [["../..", "", ""], ["0" * 32, "../1", ""], ["0" * 32, ""], "x", [1, 2, 3]])
def test_a_version_is_no_path(names):
    with pytest.raises(WrongMessageError, match="`personal` must be a run and two versions"):
        PersonalVersion.from_values({"personal": names})


def test_a_message_says_which_version_counts():
    version = PersonalVersion("0" * 32, "7-00000000000000ff", "8-00000000000000aa")
    asked = Instruction(1, zeros(), None, 8, 0.5, 7, 0.0, personal=version)
    assert Instruction.from_records(asked.to_records(), zeros()).personal == version


def normalised(features, classes):
    """A softmax regression on features without their mean, which is a statistic of the batches seen."""

    def init(key):
        return {"mean": jnp.zeros(features), "weight": jnp.zeros((classes, features))}

    def losses(params, x, y):
        logits = (x - params["mean"]) @ params["weight"].T
        return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, y[:, None].astype(int), 1)[:, 0]

    def training(params, x, y, weights):
        mean = jnp.sum(weights[:, None] * x, axis=0) / jnp.sum(weights)
        fresh = {**params, "mean": 0.9 * params["mean"] + 0.1 * jax.lax.stop_gradient(mean)}
        return losses(fresh, x, y), fresh

    return Model("normalised", init, losses, None, statistics=("mean",), training=training)


@pytest.mark.parametrize("personal", [{}, {"parameters": ["mean"]}])
def test_statistics_are_averaged_or_personal_as_in_a_simulation(personal, tmp_path, monkeypatch):
    config, model = personal_config(personal=personal), normalised(5, POPULATION.classes)
    grid = FakeGrid(config, POPULATION, model=model, folder=tmp_path / "devices")
    result = run(config, grid, tmp_path / "run", monkeypatch)
    same_path(result, fedprox.train(config, population=POPULATION, model=model), rel=1e-6)
    assert arrays_sent(grid) == ({"weight"} if personal else {"weight", "mean"})


def test_a_part_that_is_missing_on_a_node_is_one_sentence(tmp_path, monkeypatch):
    reason = "<class 'fedprox.core.errors.ConfigError'>:<'`method.name` must name a module that can be imported'>"
    config = build_config(deploy={"devices": 4, "join_seconds": 5.0})
    grid = FakeGrid(config, POPULATION, lambda device, asked, answer: Error(2, reason) if device == 2 else answer)
    with pytest.raises(RunError, match=r"device 2 has not; turned away: node 102: .* must name a module that can be"):
        run(config, grid, tmp_path / "run", monkeypatch)
