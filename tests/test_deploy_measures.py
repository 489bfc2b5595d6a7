"""What real devices report: metrics of a user's own, losses for a sampler, and reports that are not to be believed."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedprox
from fake_federation import FakeGrid
from fedprox.core.files import read_tensors
from fedprox.deploy.measuring import pooled, reason_to_ignore
from fedprox.deploy.messages import Evaluation, Introduction, ModelQuery
from test_deploy_loop import Ditto, same_path
from test_deploy_parts import POPULATION, build_config, run, zeros


def hits(labels, predictions):
    return np.mean(labels == predictions)


def errors(labels, predictions):
    return {"all": (labels != predictions).sum(), "first": ((labels != predictions) & (labels == 0)).sum()}


errors.adds_up = True  # type: ignore[attr-defined]


def loudest(view, explore: int = 1):
    """The devices with the largest loss, and one that was never chosen."""
    unseen = [device for device in range(len(view.sizes)) if device not in view.known]
    known = sorted(view.known, key=lambda device: -(view.known[device].loss or 0.0))
    return [*unseen[:explore], *known][: view.per_round] if view.known else unseen[: view.per_round]


@dataclass(frozen=True)
class Personal(Ditto):
    """Ditto, measured with the second models of the devices."""

    own_models: bool = True

    def device_model(self, params, state):
        return state


METRICS = {"metrics": ["test_deploy_measures:hits", "test_deploy_measures:errors"]}


def test_metrics_are_those_of_the_simulation_where_they_are_means_or_sums(tmp_path, monkeypatch):
    config = build_config(measure=METRICS)
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    simulated = fedprox.train(config, population=POPULATION)
    same_path(result, simulated)
    for ours, theirs in zip(result.history, simulated.history, strict=True):
        assert ours["hits"] == pytest.approx(theirs["test_accuracy"])
        for name in ("hits", "errors_all", "errors_first"):
            assert ours[name] == pytest.approx(theirs[name])


def test_a_device_with_a_model_of_its_own_is_measured_with_it(tmp_path, monkeypatch):
    config, method = build_config(measure=METRICS), Personal()
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, method=method)
    simulated = fedprox.train(config, population=POPULATION, method=method)
    for ours, theirs in zip(result.history, simulated.history, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        assert ours["hits"] == pytest.approx(theirs["hits"])
    shared = fedprox.train(config, population=POPULATION, method=Ditto())
    assert shared.history[-1]["train_loss"] != pytest.approx(simulated.history[-1]["train_loss"], rel=1e-3)


def test_personal_models_of_real_devices_are_measured_beside_the_shared_one(tmp_path, monkeypatch):
    config = build_config(method={"name": "ditto", "mu": 0.5, "personal_mu": 0.2})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    simulated = fedprox.train(config, population=POPULATION, out=tmp_path / "simulated")
    same_path(result, simulated)
    for ours, theirs in zip(result.history, simulated.history, strict=True):
        assert ours["personal_test_accuracy"] == pytest.approx(theirs["personal_test_accuracy"])
    rows = [fedprox.load_run(tmp_path / name).evaluation for name in ("run", "simulated")]
    for ours, theirs in zip(*rows, strict=True):
        assert ours["personal_test_loss"] == pytest.approx(theirs["personal_test_loss"], rel=1e-5)
        assert ours["test_loss"] == pytest.approx(theirs["test_loss"], rel=1e-5)


def test_a_sampler_knows_the_losses_and_the_seconds_of_real_devices(tmp_path, monkeypatch):
    config = build_config(rounds=4, devices={"per_round": 2, "sampling": "test_deploy_measures:loudest", "explore": 1})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    simulated = fedprox.train(config, population=POPULATION)
    assert result.devices.column("device") == simulated.devices.column("device")
    same_path(result, simulated)
    known = read_tensors(tmp_path / "run" / "checkpoint" / "state.safetensors")[1]["state"]["known"]
    assert all(loss > 0 and seconds > 0 for _, loss, seconds in known.values())


def test_metrics_of_hostile_reports_are_refused():
    said, whole = Introduction(0, 3, 1), Evaluation(3, 1.0, 1.0, 1, 1.0, 1.0)
    for metrics, reason in (
        ({"hits": math.inf}, "its metric 'hits' is infinite"),
        ({"hats": 1.0}, "it reports the metric 'hats', which is not in `measure.metrics`"),
        ({f"hits_{turn}": 1.0 for turn in range(1001)}, "it reports 1001 metrics; at most 1000 are read"),
        ({"hits": math.nan, "hits_macro": 0.5}, None),
    ):
        report = replace(whole, metrics=metrics)
        assert reason_to_ignore(report, said, zeros(), gradient=False, metrics=["hits"]) == reason


def test_a_report_with_a_false_metric_is_left_out_of_the_measures(tmp_path, monkeypatch):
    def false(device, asked, answer):
        if device == 1 and isinstance(asked, ModelQuery):
            return replace(answer, metrics={**answer.metrics, "train_loss": 0.0})
        return answer

    config = build_config(rounds=1, measure=METRICS)
    result = run(config, FakeGrid(config, POPULATION, false), tmp_path / "run", monkeypatch)
    assert [row["measured_devices"] for row in result.history] == [3, 3]


def test_devices_without_a_value_are_left_out_of_the_mean():
    reports = {
        0: Evaluation(3, 1.0, None, 1, 1.0, None, metrics={"hits": 1.0, "errors": 2.0}),
        1: Evaluation(3, 1.0, None, 3, 1.0, None, metrics={"hits": 0.0, "errors": 3.0}),
        2: Evaluation(3, 1.0, None, 4, 1.0, None, metrics={"hits": math.nan, "errors": math.nan}),
        3: Evaluation(3, 1.0, None, 0, None, None, metrics={"hits": 9.0, "errors": 9.0}),  # over training samples
    }
    metrics = {"hits": hits, "errors": errors}
    assert pooled(reports, gradient=False, metrics=metrics).own == {"hits": 0.25, "errors": 5.0}
    assert pooled({2: reports[2]}, gradient=False, metrics=metrics).own == {"hits": None, "errors": None}
    assert pooled({3: reports[3]}, gradient=False, metrics=metrics).own == {"hits": 9.0, "errors": 9.0}
