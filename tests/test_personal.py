"""Shared, personal and frozen parameters, and statistics that no gradient trains."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedprox
from conftest import population_of
from fedprox.adapters.scipy import scipy_solver
from fedprox.adapters.torch import from_torch
from fedprox.cli import app
from fedprox.core.errors import ConfigError, RunFolderError
from fedprox.engines.calibration import measure_speed
from fedprox.models import Model, linear_regression, softmax_regression
from fedprox.participation.budget import minibatches, split_batches
from fedprox.runs.evaluate import evaluate, predict
from fedprox.runs.own_models import check_all_here
from in_process_ray import cluster_of

POPULATION = population_of([7, 23, 4, 31, 12, 9], test=3)
FEATURES, CLASSES = POPULATION.shape[0], POPULATION.classes
MODEL = softmax_regression(FEATURES, CLASSES)
RATE = 0.05
CONFIG: dict[str, Any] = {
    "rounds": 4,
    "method": {"mu": 0.5},
    "solver": {"epochs": 2, "learning_rate": RATE},
    "devices": {"per_round": 3, "stragglers": 0.5},
    "measure": {"gamma": True},
    "checkpoint": {"every": 2},
}
BIAS = {"parameters": ["bias"]}


def run(personal: Any = None, population: Any = POPULATION, **changes: Any) -> fedprox.Result:
    names = ("model", "method", "solver", "out", "resume")
    objects = {name: changes.pop(name) for name in names if name in changes and not isinstance(changes[name], dict)}
    return fedprox.train({**CONFIG, "personal": personal or {}, **changes}, population=population, **objects)


def initial() -> Any:
    seen: list[Any] = []
    fedprox.train({**CONFIG, "rounds": 1}, population=POPULATION, callbacks=[lambda p: seen.append(p.params)])
    return seen[0]


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def losses_and_gradient(weight, bias, x, y):
    z = x @ weight.T + bias
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    losses = -np.log(p[np.arange(len(y)), y])
    hits = p.argmax(axis=1) == y
    p[np.arange(len(y)), y] -= 1
    return losses, hits, p.T @ x / len(x), p.mean(axis=0)


def test_fedprox_with_personal_biases_agrees_with_numpy(tmp_path):
    start = initial()
    solver = {"epochs": 3, "learning_rate": RATE, "batch_size": 0}
    result = run(BIAS, rounds=2, devices={"per_round": 2, "stragglers": 0.5}, solver=solver, out=tmp_path / "run")
    shared, first = start["weight"].astype(np.float64), start["bias"].astype(np.float64)
    own: dict[int, Any] = {}
    for row in result.devices:
        mean = np.zeros_like(shared)
        for device, budget, weight in zip(row["device"], row["budget"], row["weight"], strict=True):
            x, y = POPULATION.train.of(device)
            w, b = shared, own.get(device, first)
            for _ in range(budget):
                _, _, slope, bias_slope = losses_and_gradient(w, b, x, y)
                w, b = w - RATE * (slope + 0.5 * (w - shared)), b - RATE * bias_slope  # the proximal term: shared alone
            own[device], mean = b, mean + weight * w
        shared = mean
    np.testing.assert_allclose(result.params["weight"], shared, atol=2e-6)
    assert np.array_equal(result.params["bias"], start["bias"])  # those of devices that never took part
    assert set(result.personal) == set(own) < set(range(6))
    for device, bias in own.items():
        np.testing.assert_allclose(result.personal[device]["bias"], bias, atol=2e-6)
    measured = [losses_and_gradient(shared, own.get(k, first), *POPULATION.train.of(k)) for k in range(6)]
    last = result.history[-1]
    assert last["train_loss"] == pytest.approx(np.concatenate([each[0] for each in measured]).mean(), abs=1e-5)
    assert last["train_accuracy"] == pytest.approx(np.concatenate([each[1] for each in measured]).mean())
    tested = [losses_and_gradient(shared, own.get(k, first), *POPULATION.test.of(k))[1] for k in range(6)]
    assert last["test_accuracy"] == pytest.approx(np.concatenate(tested).mean())
    p, slopes = np.diff(POPULATION.train.offsets) / len(POPULATION.train), np.array([each[2] for each in measured])
    variance = p @ (slopes**2).sum(axis=(1, 2)) - (np.tensordot(p, slopes, 1) ** 2).sum()
    assert last["gradient_variance"] == pytest.approx(variance, rel=1e-3)  # of the shared parameters alone
    rows = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
    for k, row in enumerate(rows):
        assert row["train_loss"] == pytest.approx(measured[k][0].mean(), abs=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fednova", "feddyn", "fedadam"])
def test_one_mechanism_for_every_method_and_engine(method, tmp_path, monkeypatch):
    settings = {"method": {"name": method}, "personal": BIAS, "measure": {"gamma": True}}
    whole = run(**settings)
    assert whole.personal
    assert not same(whole.params, run(method={"name": method}).params)
    for workers in (1, 2):
        assert same(whole.params, run(**settings, engine={"workers": workers}).params)
    cluster = cluster_of(2, ())
    monkeypatch.setattr("fedprox.engines.ray.Cluster", lambda address, workers: cluster)
    on_ray = run(**settings, engine={"name": "ray"})
    run(**settings, rounds=2, out=tmp_path / "run")
    resumed = run(**settings, out=tmp_path / "run", resume=True)
    for other in (on_ray, resumed):
        assert same((whole.params, dict(whole.personal)), (other.params, dict(other.personal)))
        assert [row["train_loss"] for row in whole.history] == [row["train_loss"] for row in other.history]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Any:
    """A run with personal weights in a folder, whose model and data are named by its config."""
    out = tmp_path_factory.mktemp("personal") / "run"
    config = {"rounds": 3, "data": {"devices": 5}, "devices": {"per_round": 2}, "solver": {"epochs": 1}}
    right = {"right": lambda labels, predictions: (labels == predictions).mean()}
    return fedprox.train({**config, "personal": {"parameters": ["weight"]}}, metrics=right, out=out)


def test_metrics_of_ones_own_see_the_model_of_each_device(saved):
    for row in saved.history:
        assert row["right"] == pytest.approx(row["test_accuracy"])
    shared = evaluate_with(saved.params)
    assert shared != saved.history[-1]["test_accuracy"]  # what the model of the server alone would give


def evaluate_with(params: Any) -> float:
    population = fedprox.data.load(fedprox.Config.from_dict({"data": {"devices": 5}}))
    scores = population.test.x @ params["weight"].T + params["bias"]
    return float((scores.argmax(axis=1) == population.test.y).mean())


def test_evaluate_measures_each_device_with_its_own_model(saved):
    found = evaluate(saved.path)
    assert found["test_accuracy"] == pytest.approx(saved.history[-1]["test_accuracy"])
    assert found["train_loss"] == pytest.approx(saved.history[-1]["train_loss"], rel=1e-5)
    assert [row["train_loss"] for row in found["devices"]] == saved_rows(saved)
    device, model = next(iter(saved.personal.items()))
    one = evaluate(saved.path, device=device)
    assert one["test_accuracy"] == pytest.approx(evaluate_with(model))
    other = fedprox.data.load(fedprox.Config.from_dict({"data": {"devices": 3, "seed": 1}}))
    with pytest.raises(ConfigError, match=r"`device` must be given for .*, whose devices have models of their own"):
        evaluate(saved.path, other)
    assert len(evaluate(saved.path, other, device=device)["devices"]) == 3


def saved_rows(result: Any) -> list[float]:
    return [row["train_loss"] for row in fedprox.load_run(result.path).evaluation]


def test_predict_asks_which_device_is_meant(saved, tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 60)).astype(np.float32)
    device, model = next(iter(saved.personal.items()))
    expected = (x @ model["weight"].T + model["bias"]).argmax(axis=1)
    assert (predict(saved.path, x, device=device) == expected).all()
    idle = next(device for device in range(5) if device not in saved.personal)
    assert (predict(saved.path, x, device=idle) != expected).any()
    np.save(tmp_path / "x.npy", x)
    command = ["predict", str(saved.path), "--data", str(tmp_path / "x.npy")]
    named = CliRunner().invoke(app, [*command, "--device", str(device)])
    assert list(map(int, named.output.split())) == expected.tolist()
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "`device` must be given" in refused.output
    for number, sentence in ((5, "from 0 to 4; got 5"), (-1, "got -1")):
        with pytest.raises(ConfigError, match=sentence):
            predict(saved.path, x, device=number)
    with pytest.raises(RunFolderError, match=r"device \d of .* keeps its personal parameters"):
        check_all_here(fedprox.load_run(saved.path), {})  # as in a run of real devices
    plain = fedprox.train({"rounds": 1, "data": {"devices": 5}, "devices": {"per_round": 2}}, out=tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"`device` must be left out for .*, whose devices share one model; got 0"):
        predict(plain.path, x, device=0)


def test_what_is_not_shared_is_not_sent():
    weight, bias = 4 * FEATURES * CLASSES, 4 * CLASSES
    for method, copies in (("fedavg", 1), ("scaffold", 2)):  # SCAFFOLD's variates are as large as what is shared
        for personal, sent in ((None, weight + bias), (BIAS, weight), ({"frozen": ["weight"]}, bias)):
            result = run(personal, method={"name": method}, devices={"per_round": 3}, rounds=1)
            assert result.history[-1]["bytes"] == 3 * 2 * copies * sent


@pytest.mark.parametrize(
    "solver",
    [
        {"momentum": 0.9, "weight_decay": 0.1},
        {"name": "adam"},
        {"name": "optax", "options": {"name": "adamw"}},
        {"name": "svrg"},
        {"name": "lbfgs"},
        {"name": "newton_cg"},
        {"batch_size": 0, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_frozen_parameters_never_move_and_the_others_do(solver):
    start = initial()
    result = run({"frozen": ["weight"]}, solver={"epochs": 3, "learning_rate": RATE, **solver})
    assert np.array_equal(result.params["weight"], start["weight"])
    assert not np.array_equal(result.params["bias"], start["bias"])
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


@pytest.mark.parametrize(
    "solver",
    [
        scipy_solver("L-BFGS-B"),
        scipy_solver("Powell"),
        fedprox.solvers.opaque(
            lambda params, x, y, subproblem, budget, key: (
                {"bias": params["bias"] + 1, "weight": params["weight"] + 1},
                1,
            )
        ),
    ],
    ids=lambda solver: solver.name,
)
def test_frozen_parameters_never_move_whatever_a_solver_does(solver):
    start = initial()
    settings = {**CONFIG, "rounds": 1, "solver": {"epochs": 40}, "personal": {"frozen": ["weight"]}}
    result = fedprox.train(settings, population=POPULATION, solver=solver)
    assert np.array_equal(result.params["weight"], start["weight"])
    assert not np.array_equal(result.params["bias"], start["bias"])


def test_the_closed_form_solves_for_what_is_trained():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)).astype(np.float32), rng.normal(size=30).astype(np.float32) + 2
    population = fedprox.Population.from_arrays(x, y, np.zeros(30, int), test=np.zeros(30, bool))
    settings = {"rounds": 1, "devices": {"per_round": 1}, "method": {"mu": 0.5}, "model": {"name": "linear_regression"}}
    settings |= {"solver": {"name": "closed_form"}, "personal": {"frozen": ["bias"]}}
    result = fedprox.train(settings, population=population, model=linear_regression(3))
    expected = np.linalg.solve(x.T @ x / 30 + 0.5 * np.eye(3), x.T @ y / 30)
    np.testing.assert_allclose(result.params["weight"], expected, atol=1e-5)
    assert result.params["bias"] == 0


def test_a_torch_module_keeps_its_frozen_and_personal_parameters():
    module = torch.nn.Linear(FEATURES, CLASSES)
    model, solver = from_torch(
        module, optimiser=lambda parameters, lr: torch.optim.SGD(parameters, lr, weight_decay=0.1)
    )
    start = model.init(None)
    result = run({"frozen": ["weight"]}, model=model, solver=solver)
    assert np.array_equal(result.params["weight"], start["weight"])
    assert not np.array_equal(result.params["bias"], start["bias"])
    result = run(BIAS, model=model, solver=solver)
    assert result.personal
    assert np.array_equal(result.params["bias"], start["bias"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"personal": {"parameters": ["biass"]}},
            r"`personal.parameters` must match parameters of softmax_regression "
            r"\(bias, weight\); did you mean `bias`\?; got 'biass'",
        ),
        ({"personal": {"frozen": ["nothing.*"]}}, r"`personal.frozen` must match parameters of softmax_regression"),
        ({"personal": {"parameters": ["*"]}}, r"must leave a trained parameter to share; got \['\*'\] and \[\]"),
        ({"personal": {"parameters": ["bias"], "frozen": ["weight"]}}, "must leave a trained parameter to share"),
        ({"personal": {"parameters": ["b*"], "frozen": ["bias"]}}, "'bias' in both"),
        ({"personal": {"parameters": "bias"}}, "`personal.parameters` must be a list of patterns over parameter names"),
        ({"personal": BIAS, "method": {"name": "feddane"}}, "`personal.parameters` must be empty with .*'feddane'"),
    ],
)
def test_bad_patterns_are_refused_in_a_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run(**settings)


def test_personal_parameters_are_refused_where_they_cannot_be_kept():
    from fedprox.config import Config
    from fedprox.theory.replay import Devices

    with pytest.raises(ConfigError, match=r"must be empty for theory"):
        Devices(Config.from_dict({**CONFIG, "personal": BIAS}), POPULATION, MODEL)
    assert measure_speed({**CONFIG, "personal": BIAS}, population=POPULATION, seconds=0.001).samples_per_second > 0


def test_clipping_covers_the_shared_parameters():
    settings = {"privacy": {"clip": 1e-3}, "method": {"name": "fedavg"}, "devices": {"per_round": 3}, "rounds": 1}
    start, result = initial(), run(BIAS, **settings)
    assert 0 < np.linalg.norm(result.params["weight"] - start["weight"]) <= 1e-3 * (1 + 1e-4)
    assert result.devices[0]["clipped"] == [True] * 3
    assert np.abs(result.personal[result.devices[0]["device"][0]]["bias"] - start["bias"]).max() > 1e-3


# Statistics: inputs are normalised by those of their mini-batch in training, and by running ones otherwise.


def normalised() -> Model:
    def init(key: jax.Array) -> Any:
        norm = {"mean": jnp.zeros(FEATURES), "variance": jnp.ones(FEATURES), "scale": jnp.ones(FEATURES)}
        return {"norm": norm, "output": {"weight": 0.1 * jax.random.normal(key, (FEATURES, CLASSES))}}

    def scores(params: Any, x: Any, mean: Any, variance: Any) -> Any:
        z = (x - mean) / jnp.sqrt(variance + 1e-5) * params["norm"]["scale"]
        return z @ params["output"]["weight"]

    def cross_entropy(z: Any, y: Any) -> Any:
        return jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, y[:, None], axis=1)[:, 0]

    def running(params: Any, x: Any) -> Any:
        return scores(params, x, params["norm"]["mean"], params["norm"]["variance"])

    def training(params: Any, x: Any, y: Any, weights: Any) -> Any:
        mean = weights @ x
        variance = weights @ (x - mean) ** 2
        losses = cross_entropy(scores(params, x, mean, variance), y)
        norm = params["norm"]
        fresh = {"mean": 0.9 * norm["mean"] + 0.1 * mean, "variance": 0.9 * norm["variance"] + 0.1 * variance}
        return losses, {**params, "norm": {**norm, **fresh}}

    return Model(
        "normalised",
        init,
        lambda params, x, y: cross_entropy(running(params, x), y),
        lambda params, x: jnp.argmax(running(params, x), axis=1),
        statistics=("norm.mean", "norm.variance"),
        training=training,
    )


NORMALISED = normalised()


def reference_statistics(device: int, budget: int, round: int, mean: Any, variance: Any) -> tuple[Any, Any]:
    x, _ = POPULATION.train.of(device)
    count = len(x)
    pieces = minibatches(count, 10, budget, seed=0, round=round, device=device, piece=256)
    for piece in pieces:
        for rows in split_batches(piece, count):
            batch = x[rows].astype(np.float64)
            mean, variance = 0.9 * mean + 0.1 * batch.mean(axis=0), 0.9 * variance + 0.1 * batch.var(axis=0)
    return mean, variance


@pytest.mark.parametrize("personal", [None, {"parameters": ["norm"]}])
@pytest.mark.parametrize("method", ["fedavg", "fedadam", "scaffold"])
def test_running_statistics_agree_with_numpy(method, personal):
    result = run(personal, model=NORMALISED, method={"name": method}, devices={"per_round": 3}, rounds=2)
    mean, variance = np.zeros(FEATURES), np.ones(FEATURES)
    own: dict[int, Any] = {}
    for row in result.devices:
        found = {}
        for device, budget in zip(row["device"], row["budget"], strict=True):
            before = own.get(device, (np.zeros(FEATURES), np.ones(FEATURES))) if personal else (mean, variance)
            own[device] = found[device] = reference_statistics(device, budget, row["round"], *before)
        if not personal:  # the weighted mean, whatever the method does with the trained parameters
            mean = sum(w * found[k][0] for k, w in zip(row["device"], row["weight"], strict=True))
            variance = sum(w * found[k][1] for k, w in zip(row["device"], row["weight"], strict=True))
    np.testing.assert_allclose(result.params["norm"]["mean"], mean, atol=1e-5)
    np.testing.assert_allclose(result.params["norm"]["variance"], variance, atol=1e-5)
    for device, model in result.personal.items():
        np.testing.assert_allclose(model["norm"]["mean"], own[device][0], atol=1e-5)
        np.testing.assert_allclose(model["norm"]["variance"], own[device][1], atol=1e-5)
    assert bool(result.personal) == bool(personal)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_statistics_are_sent_but_not_where_they_are_personal():
    trained, statistics = 4 * (FEATURES + FEATURES * CLASSES), 8 * FEATURES
    for personal, sent in ((None, trained + statistics), ({"parameters": ["norm.mean", "norm.variance"]}, trained)):
        result = run(personal, model=NORMALISED, devices={"per_round": 3}, rounds=1)
        assert result.history[-1]["bytes"] == 3 * 2 * sent


@pytest.mark.filterwarnings("ignore:merge.rule = 'centered_clipping'")
@pytest.mark.parametrize(
    ("method", "personal"),
    [(name, personal) for name in ("fedprox", "fednova", "fedexp", "agnostic") for personal in (BIAS, None)]
    + [("sdane", None)],
)
def test_replies_of_divided_models_are_merged_around_where_devices_began(method, personal):
    settings: Any = {"method": {"name": method}, "measure": {}, "rounds": 2}
    if not personal:
        settings["model"] = NORMALISED
    mean = run(personal, **settings)
    far = run(personal, **settings, merge={"rule": "centered_clipping", "radius": 1e6})  # clips nothing
    honest = run(personal, **settings, attack={"share": 0.5, "kind": "scale", "strength": 1.0})
    for other in (far, honest):
        for leaf, expected in zip(jax.tree.leaves(other.params), jax.tree.leaves(mean.params), strict=True):
            np.testing.assert_allclose(leaf, expected, atol=1e-5)


def test_statistics_take_no_part_in_gamma_and_the_proximal_term():
    result = run(model=NORMALISED, method={"mu": 1e6}, solver={"epochs": 1, "learning_rate": 1e-9}, rounds=1)
    assert all(gamma < 10 for gamma in result.devices[0]["gamma"])  # mu times their change would be 1e4 and more


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"solver": {"name": "lbfgs"}}, "`solver.name` must be one that steps on mini-batches"),
        ({"solver": {"name": "svrg"}}, "`solver.name` must be one that steps on mini-batches"),
        ({"solver": {"batch_size": 0}}, "`solver.batch_size` must be an integer >= 1 with normalised"),
        ({"privacy": {"clip": 1.0}, "method": {"name": "fedavg"}}, "`privacy.clip` must be 0 with the statistics"),
    ],
)
def test_what_statistics_cannot_go_with_is_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run(model=NORMALISED, **settings)


def test_personal_first_trains_the_head_and_then_the_rest():
    """FedRep by hand: softmax regression, all samples in a batch, two steps on the bias and then two on the weights."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)).astype(np.float32), np.repeat([0, 1], [8, 4])
    population = fedprox.Population.from_arrays(x, y, np.zeros(12, int), test=np.zeros(12, bool))
    settings = {
        "rounds": 1,
        "devices": {"per_round": 1},
        "solver": {"name": "personal_first", "batch_size": 0, "epochs": 4, "learning_rate": 0.5},
        "personal": {"parameters": ["bias"]},
    }
    result = fedprox.train(settings, population=population)
    weight, bias = np.zeros((3, 2)), np.zeros(2)

    def gradient():
        scores = x @ weight + bias
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return (shares - np.eye(2)[y]) / len(y)

    for _ in range(2):
        bias = bias - 0.5 * gradient().sum(axis=0)
    for _ in range(2):
        weight = weight - 0.5 * x.T @ gradient()
    np.testing.assert_allclose(result.params["weight"].T, weight, atol=1e-6)
    np.testing.assert_allclose(result.personal[0]["bias"], bias, atol=1e-6)
    assert abs(bias[0]) > 0.1
    assert result.devices[0]["steps"] == [4]


def test_personal_first_divides_the_budget_and_resumes(tmp_path):
    settings = {
        "data": {"devices": 6},
        "devices": {"per_round": 3, "stragglers": 0.5},
        "solver": {"name": "personal_first", "epochs": 2, "options": {"share": 0.9}},
        "personal": {"parameters": ["bias"]},
        "checkpoint": {"every": 1},
    }
    whole = fedprox.train({**settings, "rounds": 4, "engine": {"workers": 1}})
    assert all(row["steps"] == row["budget"] for row in whole.devices)
    fedprox.train({**settings, "rounds": 2}, out=tmp_path / "run")
    resumed = fedprox.train({**settings, "rounds": 4, "engine": {"workers": 2}}, out=tmp_path / "run", resume=True)
    assert all(np.array_equal(resumed.params[name], whole.params[name]) for name in whole.params)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "`solver.name` = 'personal_first' must be used with `personal.parameters`"),
        ({"personal": {"parameters": ["bias"]}, "solver": {"gamma": 0.1}}, "`solver.gamma` must be 0 with"),
        (
            {"personal": {"parameters": ["bias"]}, "solver": {"options": {"share": 1.0}}},
            "`solver.options.share` must be",
        ),
    ],
)
def test_personal_first_says_what_it_needs(settings, sentence):
    solver = {"name": "personal_first", **settings.get("solver", {})}
    with pytest.raises(ConfigError) as error:
        fedprox.train({"rounds": 1, **settings, "solver": solver})
    assert sentence in str(error.value)
