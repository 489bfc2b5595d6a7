"""Validation samples and held-out devices: never trained on, measured on their own, and used to choose settings."""

import json

import numpy as np
import pytest

import fedprox
from conftest import population_of
from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.experiments.sweep import sweep
from fedprox.experiments.tune import score, tune
from fedprox.population.set_aside import set_aside
from fedprox.runs.reader import load_run

PLAN = {"rounds": 2, "solver": {"learning_rate": 0.1, "epochs": 2}, "devices": {"per_round": 3}}


def rows(samples):
    return {tuple(row) for row in samples.x.tolist()}


def test_nothing_that_is_set_aside_is_trained_on():
    population = population_of([10, 20, 5, 1, 30, 8, 9, 4, 11, 6], test=2)
    found = set_aside(population, validation=0.25, holdout_devices=0.3, seed=1)
    assert found.devices == 7
    assert len(found.holdout.offsets) == 4
    parts = [found.train, found.test, found.validation, found.holdout]
    seen = [rows(part) for part in parts]
    assert sum(map(len, seen)) == len(set.union(*seen)) == len(population.train) + len(population.test)
    names = {population.name(k): k for k in range(10)}
    for k in range(found.devices):
        before = names[found.name(k)]
        size = population.train.size(before)
        assert (found.validation.size(k), found.train.size(k)) == (size // 4, size - size // 4)
        assert rows(found.train) >= {tuple(row) for row in found.train.of(k)[0].tolist()}
        assert {tuple(row) for row in found.train.of(k)[0].tolist()} <= {
            tuple(row) for row in population.train.of(before)[0].tolist()
        }
    again, other = (set_aside(population, validation=0.25, holdout_devices=0.3, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(again.train.x, found.train.x)
    assert rows(other.holdout) != seen[3] or rows(other.validation) != seen[2]


def test_they_are_measured_as_they_should_be(tmp_path):
    population = population_of([30, 40, 20, 25, 35], test=4)
    settings = {**PLAN, "data": {"validation": 0.2, "holdout_devices": 0.2}}
    result = fedprox.train(settings, population=population, out=tmp_path / "run")
    used = set_aside(population, validation=0.2, holdout_devices=0.2)
    weight, bias = result.params["weight"], result.params["bias"]
    for name, samples in (("validation", used.validation), ("holdout", used.holdout)):
        z = samples.x @ weight.T + bias
        losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), samples.y]
        last = result.history[-1]
        assert last[f"{name}_loss"] == pytest.approx(losses.mean(), rel=1e-4)
        assert last[f"{name}_accuracy"] == pytest.approx((z.argmax(axis=1) == samples.y).mean())
    assert result.summary["devices"] == 4
    assert result.summary["train_samples"] == len(used.train)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["validation_loss"] == pytest.approx(np.log(3), rel=1e-4)
    given = fedprox.train(settings, population=used)  # what has them already is not divided again
    assert given.history[-1]["validation_loss"] == result.history[-1]["validation_loss"]


def test_without_shares_nothing_changes():
    plain = fedprox.train({"rounds": 1})
    assert "validation_loss" not in plain.history[-1]
    loaded = data.load(Config.from_dict({"data": {"validation": 0.1}}))
    assert loaded.validation is not None
    assert loaded.holdout is None


@pytest.mark.usefixtures("runs_here")
def test_settings_are_chosen_by_validation(tmp_path, in_process):
    settings = {**PLAN, "data": {"devices": 6, "validation": 0.2}}
    grid = sweep(settings, ["solver.learning_rate=0.0001,0.1"], out=tmp_path / "sweep")
    table = grid.table()
    assert table[0]["validation_accuracy"] >= table[1]["validation_accuracy"]
    run = load_run(grid.done[0])
    assert score(run) == run.history[-1]["validation_loss"]
    tuning = tune(settings, out=tmp_path / "tune", rates=[0.01, 0.1], mus=[0.0, 1.0])
    assert "with the lowest validation loss" in tuning.rate.words()
    plan = tmp_path / "plan.toml"
    plan.write_text(Config.from_dict(settings).to_toml())
    told = in_process("tune", plan, "--rates", "0.01,0.1", "--mus", "0.5,1", "--out", "tune", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "Judged by the validation loss" in told.stdout


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ({"validation": 0.01}, r"`data.validation` must leave at least one device a validation sample.*got 0.01"),
        ({"holdout_devices": 0.05}, r"must hold out at least one of the 3 devices, and not all; got 0.05"),
        ({"holdout_devices": 0.9}, r"must hold out at least one of the 3 devices, and not all; got 0.9"),
    ],
)
def test_shares_that_leave_nothing(shares, sentence):
    with pytest.raises(ConfigError, match=sentence):
        set_aside(population_of([5, 6, 7]), **shares)


def test_a_share_is_below_one():
    with pytest.raises(ConfigError, match=r"`data.validation` must be a number in \[0, 1\); got 1.0"):
        Config.from_dict({"data": {"validation": 1.0}})
