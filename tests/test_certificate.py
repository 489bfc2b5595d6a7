"""Certificates of runs that the theorem covers, and refusals of those that it does not."""

from __future__ import annotations

import json
import math
import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox import theory
from fedprox.cli import app
from fedprox.core.errors import ConfigError, RunFolderError
from fedprox.models import Model, linear_regression, mlp
from fedprox.population import Population
from fedprox.solvers.inexactness import inexactness
from fedprox.theory.expectation import check_decrease, uncovered
from fedprox.theory.replay import Devices
from fedprox.theory.trajectory import again

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["certificate_least_squares", "certificate_softmax"])
def test_the_examples_pass(name, tmp_path):
    certificate = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](tmp_path)
    assert certificate.kind == "certificate"
    assert certificate.guaranteed == len(certificate.rounds) == 10
    assert all(line.startswith("holds") for line in certificate.assumptions)
    test = certificate.expectation
    assert test.verdict == "holds"
    assert test.low <= test.mean <= test.high <= test.bound < test.loss
    first = certificate.rounds[0]
    assert test.gamma >= first.gamma  # over all devices, not only the chosen ones
    assert first.predicted == pytest.approx(first.rho * first.gradient_norm2)
    again = theory.rho(mu=first.mu, gamma=first.gamma, B=first.B, K=100, L=certificate.smoothness.L)
    assert first.rho == again
    assert certificate.smallest_mu.value < certificate.best_mu.value


@pytest.fixture(scope="module")
def population():
    random = np.random.default_rng(3)
    device = np.repeat(np.arange(6), [4, 9, 6, 12, 5, 8])
    x = random.normal(size=(len(device), 2))
    y = x @ [1.0, -2.0] + 0.5 * random.normal(size=(6, 1))[device, 0] + 1
    return Population.from_arrays(x, y, device, test=np.zeros(len(device), bool))


def settings(**changes):
    base: dict[str, Any] = {
        "rounds": 3,
        "method": {"mu": 4.0},
        "solver": {"learning_rate": 0.1, "batch_size": 0, "epochs": 3},
        "devices": {"per_round": 40, "sampling": "proportional"},
    }
    for section, values in changes.items():
        base[section] = {**base[section], **values} if section in base and isinstance(values, dict) else values
    return base


def run(tmp_path, population, model=None, **changes):
    model = model or linear_regression(2)
    fedprox.train(settings(**changes), population=population, model=model, out=tmp_path / "run")
    return tmp_path / "run", {"population": population, "model": model}


def by_hand(population, w, mu, rate, epochs):
    """Gradients, B and gamma of least squares in double precision."""
    norms, mean, gammas = [], 0.0, []
    for device in range(population.devices):
        x, y = population.train.of(device)
        rows = np.hstack([np.ones((len(x), 1)), x]).astype(float)

        def gradient(v, rows=rows, y=y):
            return rows.T @ (rows @ v - y) / len(y)

        v = w.copy()
        for _ in range(epochs):
            v -= rate * (gradient(v) + mu * (v - w))
        norms.append(np.sum(gradient(w) ** 2))
        mean = mean + population.masses[device] * gradient(w)
        gammas.append(np.linalg.norm(gradient(v) + mu * (v - w)) / np.linalg.norm(gradient(w)))
    norm2 = float(np.sum(mean**2))
    return norm2, math.sqrt(float(population.masses @ norms) / norm2), gammas


def test_a_round_against_plain_numpy(tmp_path, population):
    folder, objects = run(tmp_path, population)
    certificate = theory.certify(folder, **objects, resample=30)
    norm2, b, gammas = by_hand(population, np.zeros(3), 4.0, 0.1, 3)
    first = certificate.rounds[0]
    assert first.gradient_norm2 == pytest.approx(norm2, rel=1e-5)
    assert pytest.approx(b, rel=1e-5) == first.B
    assert first.gamma == pytest.approx(max(gammas), rel=1e-4)  # forty draws of six devices leave nobody out
    assert certificate.expectation.gamma == pytest.approx(max(gammas), rel=1e-4)
    assert pytest.approx(b, rel=1e-5) == certificate.expectation.B
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train_loss"] for row in metrics]
    assert [row.observed for row in certificate.rounds] == pytest.approx(list(-np.diff(losses)))
    assert metrics[0]["dissimilarity"] == pytest.approx(first.B)


def test_the_resampled_mean_is_near_the_exact_expectation(tmp_path, population):
    """With K = 1 the expectation is sum_k p_k f(w_k), which can be computed."""
    folder, objects = run(tmp_path, population, devices={"per_round": 1})
    test = theory.certify(folder, **objects, resample=400).expectation
    x, y = population.train.x.astype(float), population.train.y.astype(float)
    everything = np.hstack([np.ones((len(x), 1)), x])
    exact = 0.0
    for device in range(population.devices):
        xs, ys = population.train.of(device)
        rows = np.hstack([np.ones((len(xs), 1)), xs]).astype(float)
        v = np.zeros(3)
        for _ in range(3):
            v -= 0.1 * (rows.T @ (rows @ v - ys) / len(ys) + 4.0 * v)
        exact += population.masses[device] * np.mean((everything @ v - y) ** 2) / 2
    half = (test.high - test.low) / 2
    assert abs(test.mean - exact) < 2 * half  # four standard errors
    assert test.verdict == "no guarantee"  # K = 1 is below B^2
    assert "says nothing" in test.sentence


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": {"sampling": "uniform", "per_round": 3}}, "`devices.sampling` must be 'proportional'"),
        ({"method": {"name": "fedavg"}}, "`method.name` must be 'fedprox'; it is 'fedavg'"),
        ({"method": {"name": "fedavg"}, "devices": {"stragglers": 0.5}}, "no device may be dropped; round 1"),
        ({"method": {"mu": "adaptive"}, "measure": {"devices": 2}}, "`measure.devices` must be 0"),
    ],
)
def test_what_the_theorems_do_not_cover_is_refused(tmp_path, population, changes, said):
    base = settings(**changes)
    if base["method"].get("name") == "fedavg":
        del base["method"]["mu"]
    model = linear_regression(2)
    fedprox.train(base, population=population, model=model, out=tmp_path / "run")
    with pytest.raises(theory.NotCoveredError) as refused:
        theory.certify(tmp_path / "run", population=population, model=model)
    assert said in str(refused.value)
    shown = CliRunner().invoke(app, ["theory", str(tmp_path / "run")])
    assert shown.exit_code == 2
    assert said in shown.stderr


def test_partial_work_is_covered_but_not_its_expectation(tmp_path, population):
    folder, objects = run(tmp_path, population, devices={"stragglers": 0.5})
    assert len(theory.certify(folder, **objects).rounds) == 3
    with pytest.raises(theory.NotCoveredError, match=r"needs `devices\.stragglers` = 0"):
        theory.certify(folder, **objects, resample=30)


@pytest.mark.filterwarnings("ignore:SGD cannot be stable")
def test_a_gamma_above_one_is_not_covered(tmp_path, population):
    folder, objects = run(tmp_path, population, solver={"learning_rate": 0.6}, rounds=1)
    certificate = theory.certify(folder, **objects, resample=30)
    assert certificate.rounds[0].gamma > 1
    assert certificate.rounds[0].rho is None
    assert certificate.rounds[0].says.startswith("not covered: a measured gamma is ")
    assert certificate.expectation.verdict == "not covered"
    assert certificate.kind == "no certificate"
    assert certificate.best_mu.value is None
    assert any(
        line.startswith("fails in 1 of 1 rounds, first in round 1: gamma <= 1") for line in certificate.assumptions
    )


@pytest.mark.filterwarnings("ignore:SGD cannot be stable")
def test_a_run_that_diverges_is_not_covered(tmp_path, population):
    folder, objects = run(tmp_path, population, solver={"learning_rate": 1e6, "epochs": 5}, rounds=4)
    certificate = theory.certify(folder, **objects)
    assert [row.says.partition(":")[0] for row in certificate.rounds] == ["not covered"] * 4
    assert not math.isfinite(certificate.rounds[-1].gamma)
    assert certificate.best_mu.value is None


def test_a_mu_that_is_too_small_has_no_guarantee(tmp_path, population):
    folder, objects = run(tmp_path, population, method={"mu": 0.5}, solver={"epochs": 30}, devices={"per_round": 400})
    row = theory.certify(folder, **objects).rounds[0]
    assert row.rho < 0
    assert row.predicted is None
    assert "no guarantee" in row.says


def test_mu_zero_is_not_covered(tmp_path, population):
    folder, objects = run(tmp_path, population, method={"mu": 0.0}, rounds=1)
    assert theory.certify(folder, **objects).rounds[0].says == "not covered: mu must be above L_minus = 0; it is 0"


def test_a_network_gets_an_estimate(tmp_path):
    x = np.random.default_rng(5).normal(size=(30, 2))
    labelled = Population.from_arrays(x, (x[:, 0] > 0).astype(int), np.repeat([0, 1, 2], 10), test=np.zeros(30, bool))
    folder, objects = run(tmp_path, labelled, mlp(2, 2, hidden=3), rounds=1)
    certificate = theory.certify(folder, **objects)
    assert certificate.kind == "estimate, not certificate"
    assert certificate.smoothness.L_minus > 0
    assert certificate.assumptions[1].startswith("estimated")


def test_other_data_than_the_runs_is_noticed(tmp_path, population):
    folder, objects = run(tmp_path, population)
    other = Population.from_arrays(
        population.train.x, population.train.y + 1, np.repeat(np.arange(6), [4, 9, 6, 12, 5, 8]), test=[False] * 44
    )
    with pytest.raises(RunFolderError, match="as its data, whose sha256 is"):
        theory.certify(folder, **objects | {"population": other})


def test_recorded_gammas_are_used(tmp_path, population):
    folder, objects = run(tmp_path, population)
    file = folder / "devices.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["gamma"] = [0.25] * (len(row["device"]) - 1) + [None if row["round"] == 3 else 0.5]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = theory.certify(folder, **objects).rounds
    assert [row.gamma for row in found] == [0.5, 0.5, math.inf]
    assert found[2].says.startswith("not covered")


def test_the_command(tmp_path):
    random = np.random.default_rng(0)
    device = np.repeat(np.arange(4), 10)
    x = random.normal(size=(40, 2))
    np.savez(tmp_path / "data.npz", x=x, y=x @ [1.0, 2.0], device=device)
    config = settings(data={"name": "npz", "path": str(tmp_path / "data.npz")}, model={"name": "linear_regression"})
    config["method"]["mu"], config["solver"]["learning_rate"] = 30.0, 0.03
    fedprox.train(config, out=tmp_path / "run")
    runner = CliRunner()
    folder = str(tmp_path / "run")
    shown = runner.invoke(app, ["theory", folder, "--resample", "30", "--round", "2"])
    assert shown.exit_code == 0, shown.stderr
    assert "L_minus = 0: a bound for every w, largest over 4 devices" in shown.stdout
    assert "round 2, gamma" in shown.stdout
    told = json.loads(runner.invoke(app, ["theory", folder, "--json"]).stdout)
    assert len(told["rounds"]) == 3
    assert told["expectation"] is None
    assert told["guaranteed"] == sum(row["rho"] > 0 for row in told["rounds"])
    for arguments, said in (
        (["--resample", "3"], "`--resample` must be 0 or an integer >= 30; got 3"),
        (["--resample", "-1"], "got -1"),
        (["--epsilon", "nan"], "`--epsilon` must be a finite number >= 0; got nan"),
        (["--devices", "0"], "`--devices` must be an integer >= 1; got 0"),
        (["--resample", "30", "--round", "9"], "`--round` must be an integer from 1 to 3"),
    ):
        refused = runner.invoke(app, ["theory", folder, *arguments])
        assert (refused.exit_code, said in refused.stderr) == (2, True)
    assert runner.invoke(app, ["theory", str(tmp_path / "nothing")]).exit_code == 2


def test_real_targets_need_linear_regression(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.ones((4, 1)), y=np.arange(4) / 2, device=np.zeros(4, int))
    data = {"name": "npz", "path": str(tmp_path / "data.npz")}
    with pytest.raises(ConfigError, match=r"`model\.name` must be 'linear_regression'"):
        fedprox.train({"rounds": 1, "data": data, "devices": {"per_round": 1}})


def test_a_run_made_on_a_cluster_is_replayed_here_on_all_cores(population):
    cluster = {"name": "ray", "address": "10.0.0.1:6379", "workers": 1000}
    config = fedprox.Config.from_dict(settings(engine=cluster))
    assert again(config, 2).engine == fedprox.Config.from_dict({}).engine
    assert again(fedprox.Config.from_dict(settings(engine={"workers": 3})), 2).engine.workers == 3
    devices = Devices(config, population, linear_regression(2))
    devices.close()
    assert devices._workers.count == len(os.sched_getaffinity(0))


def test_small_pieces():
    assert inexactness(1.0, 2.0) == 0.5
    assert inexactness(0.0, 0.0) == 0.0  # already exact
    assert inexactness(1.0, 0.0) == math.inf
    assert "infinite" in uncovered(mu=1.0, gamma=0.5, B=math.inf, L_minus=0.0)
    assert "nan" in uncovered(mu=1.0, gamma=math.nan, B=1.0, L_minus=0.0)
    assert uncovered(mu=1.0, gamma=1.0, B=1.0, L_minus=0.0) is None


def test_a_wrong_smoothness_is_found_out(tmp_path, population):
    """Were the losses almost linear, a small mu would promise far more than happens: the test must see that."""
    config = fedprox.Config.from_dict(settings(solver={"learning_rate": 0.3, "epochs": 80}))
    devices = Devices(config, population, linear_regression(2))
    try:
        test = check_decrease(
            devices,
            population,
            theory.Smoothness(1e-6, 0.0, True, "wrong on purpose"),
            round=1,
            params={"bias": np.zeros(1, np.float32), "weight": np.zeros(2, np.float32)},
            mu=0.05,
            K=400,
            sets=30,
            seed=0,
        )
    finally:
        devices.close()
    assert test.rho > 0
    assert test.verdict == "violated"


def one_dimensional(slopes, sizes):
    """Return devices of one parameter, F_k(w) = (slope_k w - 1)^2 / 2, with curvature slope_k^2."""
    device = np.repeat(np.arange(len(slopes)), sizes)
    x = np.asarray(slopes)[device, None]
    population = Population.from_arrays(x, np.ones(len(device)), device, test=np.zeros(len(device), bool))
    model = Model(
        "slope",
        lambda key: np.zeros(1, np.float32),
        lambda w, x, y: (x @ w - y) ** 2 / 2,
        None,
        curvature_bound=lambda x: float(np.mean(x**2)),
    )
    return population, model


def test_a_device_that_could_be_drawn_counts(tmp_path):
    """Forty like devices, and one on which the solver diverges; it is in few rounds, and in none of this run."""
    population, model = one_dimensional([0.3] * 40 + [0.7], [25] * 40 + [1])
    changes = {
        "rounds": 2,
        "method": {"mu": 4.07},
        "solver": {"learning_rate": 0.453, "batch_size": 0, "epochs": 200},
        "devices": {"per_round": 200},
    }
    folder, objects = run(tmp_path, population, model, **changes)
    rows = [json.loads(line) for line in (folder / "devices.jsonl").read_text().splitlines()]
    assert all(40 not in row["device"] for row in rows)
    found = theory.certify(folder, **objects)
    assert found.kind == "no certificate"
    assert (found.gamma_over, found.guaranteed, found.positive) == ("every device", 0, 0)
    assert found.rounds[0].gamma > 1e4
    assert found.rounds[0].says.startswith("not covered: a measured gamma is ")
    less = theory.certify(folder, **objects, most_devices=40)
    assert less.kind == "estimate, not certificate"
    assert (less.gamma_over, less.guaranteed, less.positive) == ("the chosen devices", 0, 2)
    assert less.rounds[0].says == "estimate: decrease in expectation"
    assert "estimated: gamma, which is known of the chosen devices alone" in less.assumptions


def test_what_a_device_would_do_as_a_straggler_counts(tmp_path, population):
    folder, objects = run(tmp_path, population, devices={"stragglers": 0.5, "per_round": 2}, rounds=4)
    plain, _ = run(tmp_path / "plain", population, devices={"per_round": 2}, rounds=4)
    for less, more in zip(
        theory.certify(plain, **objects).rounds, theory.certify(folder, **objects).rounds, strict=True
    ):
        if less.round == 1:  # later rounds start from other models
            assert more.gamma > less.gamma  # fewer epochs leave more to do
