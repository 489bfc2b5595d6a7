"""Differential privacy: what is clipped, what noise is added, what epsilon says of it, and what is refused."""

import json
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprox
from conftest import population_of
from fedprox.config import Config
from fedprox.core.errors import ConfigError, FedProxError
from fedprox.core.randomness import Purpose, generator
from fedprox.core.trees import difference, squared_norm, to_numpy
from fedprox.methods import Method, Reply
from fedprox.methods.mu import DriftMu
from fedprox.privacy import Accountant, Mechanism, clip, seeded_normals, system_normals, with_noise
from fedprox.report import write_report

PLAN = {"rounds": 3, "seed": 5, "solver": {"epochs": 2}, "devices": {"per_round": 4}}
NOISY = {"clip": 0.5, "noise_multiplier": 0.8, "delta": 1e-3}
FLOATS = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def population():
    return population_of([7, 23, 4, 31, 12, 9, 15, 5], test=3)


def run(population, privacy, **settings):
    return fedprox.train(PLAN | {"privacy": privacy} | settings, population=population)


def norm(tree):
    return math.sqrt(squared_norm(tree))


def bits(tree):
    return [leaf.tobytes() for leaf in to_numpy(tree).values()]


# Clipping


def test_an_update_is_clipped_over_all_its_parts_at_once():
    update = {"w": np.array([[2.0, 0.0], [0.0, 3.0]], np.float32), "b": np.array([6.0], np.float32)}  # norm 7
    short = clip(update, 3.5)
    np.testing.assert_allclose(short["w"], [[1.0, 0.0], [0.0, 1.5]], rtol=1e-6)
    np.testing.assert_allclose(short["b"], [3.0], rtol=1e-6)
    assert short["w"].dtype == np.float32
    assert clip(update, 7.0) is update


@given(FLOATS, st.floats(1e-6, 1e6))
def test_no_update_is_longer_than_the_norm_after_rounding(values, limit):
    assert norm(clip(np.array(values, np.float32), limit)) <= limit


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_counts_as_zero(bad):
    assert clip({"w": np.array([1.0, bad], np.float32)}, 1.0)["w"].tolist() == [0.0, 0.0]


@given(FLOATS, FLOATS)
def test_replacing_a_device_moves_the_mean_by_at_most_twice_the_norm_over_k(first, second):
    mechanism = Mechanism(clip=2.0, noise_multiplier=1.0, on_devices=False, per_round=5)
    size = min(len(first), len(second))
    updates = [
        mechanism.update(np.zeros(size, np.float32), np.array(values[:size], np.float32), system_normals)
        for values in (first, second)
    ]
    assert norm(difference(*updates).astype(float) / 5) <= 2 * 2.0 / 5 * (1 + 1e-6)


# Noise


@pytest.mark.parametrize("source", ["seeded", "system"])
def test_noise_is_normal_with_the_deviation_asked_for(source):
    stats = pytest.importorskip("scipy.stats")
    normals = seeded_normals(1, Purpose.SERVER_NOISE, 1) if source == "seeded" else system_normals
    n = 200_000
    drawn = with_noise({"a": np.full(n, 3.0), "b": np.zeros(3, np.float32)}, 0.5, normals)
    noise = (drawn["a"] - 3.0) / 0.5
    assert abs(noise.mean()) < 6 / math.sqrt(n)
    assert abs(noise.var() - 1) < 6 * math.sqrt(2 / n)
    assert stats.kstest(noise, "norm").pvalue > 1e-9  # the system's noise differs in every run
    assert drawn["b"].dtype == np.float32


def test_noise_of_other_devices_rounds_seeds_and_of_the_server_is_unrelated():
    n = 50_000
    streams = [
        seeded_normals(seed, purpose, round, device)(n)
        for seed, purpose, round, device in (
            (1, Purpose.DEVICE_NOISE, 1, 1),
            (1, Purpose.DEVICE_NOISE, 1, 2),
            (1, Purpose.DEVICE_NOISE, 2, 1),
            (2, Purpose.DEVICE_NOISE, 1, 1),
            (1, Purpose.SERVER_NOISE, 1, 0),
        )
    ]
    correlation = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlation).max() < 5 / math.sqrt(n)
    assert len({stream[0] for stream in streams}) == len(streams)


def test_noise_of_the_system_is_never_the_same_and_its_halves_are_unrelated():
    first, second = system_normals(100_001), system_normals(100_001)
    assert len(first) == 100_001
    assert first[0] != second[0]
    for a, b in ((first, second), (first[:50_000], first[50_001:])):  # the halves share their radii and angles
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / math.sqrt(len(a))
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < 6 / math.sqrt(len(a))


@pytest.mark.parametrize("replies", [0, 3, 10])
@pytest.mark.parametrize("on_devices", [False, True])
def test_the_noise_of_a_round_is_the_same_whoever_adds_it_and_whoever_is_lost(on_devices, replies):
    n, k, anchor = 100_000, 10, np.zeros(100_000)
    mechanism = Mechanism(clip=2.0, noise_multiplier=1.5, on_devices=on_devices, per_round=k)
    sent = [
        mechanism.update(anchor, anchor, seeded_normals(3, Purpose.DEVICE_NOISE, 1, device))
        for device in range(replies)
    ]
    mean = sum(sent) / k if sent else None
    model = mechanism.model(anchor, mean, replies, seeded_normals(3, Purpose.SERVER_NOISE, 1))
    deviation = 1.5 * 2.0 / k
    assert abs(model.mean()) < 6 * deviation / math.sqrt(n)
    assert abs(model.var() / deviation**2 - 1) < 6 * math.sqrt(2 / n)
    if on_devices and replies:
        assert abs(sent[0].var() / (1.5 * 2.0) ** 2 * k - 1) < 6 * math.sqrt(2 / n)


# A run


def test_with_all_equal_devices_and_a_generous_norm_nothing_changes():
    population = population_of([10] * 6)
    settings: dict[str, Any] = {"devices": {"per_round": 6}}
    plain = run(population, {}, **settings)
    private = run(population, {"clip": 1e6}, **settings)
    for name, leaf in plain.params.items():
        np.testing.assert_allclose(private.params[name], leaf, atol=1e-6)
    assert "epsilon" not in plain.history[-1]
    assert "privacy" not in plain.summary
    assert private.history[-1]["epsilon"] is None
    assert private.summary["privacy"] == {"epsilon": None, "delta": 1e-5}


def test_a_round_adds_exactly_the_noise_of_its_stream(population):
    one = {"rounds": 1}
    quiet = run(population, {"clip": 0.5}, **one)
    noisy = run(population, NOISY, **one)
    stream = generator(5, Purpose.SERVER_NOISE, 1)
    for name in quiet.params:  # in the order of the tree's leaves
        leaf = np.asarray(quiet.params[name])
        noise = 0.8 * 0.5 / 4 * stream.standard_normal(leaf.size).reshape(leaf.shape)
        np.testing.assert_allclose(np.asarray(noisy.params[name]) - leaf, noise, atol=1e-6)


def test_the_model_moves_by_the_mean_of_the_clipped_updates(population):
    whole = run(population, {"clip": 1e6}, rounds=1, devices={"per_round": 1})
    short = run(population, {"clip": 0.01}, rounds=1, devices={"per_round": 1})
    assert short.devices[0]["clipped"] == [True]
    assert whole.devices[0]["clipped"] == [False]
    assert norm(short.params) == pytest.approx(0.01, rel=1e-5)  # softmax regression starts from zeros
    for name, leaf in whole.params.items():
        np.testing.assert_allclose(short.params[name], leaf * 0.01 / norm(whole.params), atol=1e-7)


@pytest.mark.parametrize("where", ["server", "client"])
def test_a_lost_device_changes_neither_divisor_nor_noise(population, where):
    settings = {"method": {"name": "fedavg"}, "devices": {"per_round": 4, "stragglers": 0.5, "failure": 0.25}}
    record = run(population, NOISY | {"where": where}, **settings).devices[0]
    assert 0 < sum(record["kept"]) < 4
    assert record["weight"] == [0.25 if kept else 0.0 for kept in record["kept"]]
    assert [value is None for value in record["clipped"]] == [not kept for kept in record["kept"]]
    settings["devices"]["failure"] = 1.0  # type: ignore[index]
    lost = run(population, NOISY | {"where": where}, rounds=1, **settings)
    values = np.concatenate([leaf.ravel() for leaf in lost.params.values()])
    assert values.std() == pytest.approx(0.8 * 0.5 / 4, rel=0.5)  # 18 parameters that are noise alone


@pytest.mark.parametrize("method", ["fedprox", "fedavgm", "fedadam"])
@pytest.mark.parametrize("where", ["server", "client"])
def test_workers_and_resume_change_no_bit(population, tmp_path, method, where):
    settings = PLAN | {"method": {"name": method}, "privacy": NOISY | {"where": where}, "checkpoint": {"every": 1}}
    whole = fedprox.train(settings | {"engine": {"workers": 1}}, population=population)
    two = fedprox.train(settings | {"engine": {"workers": 2}}, population=population)
    fedprox.train(
        settings, population=population, out=tmp_path / "run", callbacks=[lambda progress: progress.round == 2]
    )
    resumed = fedprox.train(settings, population=population, out=tmp_path / "run", resume=True)
    assert bits(whole.params) == bits(two.params) == bits(resumed.params)
    assert whole.history.column("epsilon") == two.history.column("epsilon") == resumed.history.column("epsilon")
    other = fedprox.train(settings | {"seed": 6}, population=population)
    assert bits(other.params) != bits(whole.params)


def test_epsilon_is_on_record(population, tmp_path):
    out = tmp_path / "run"
    result = fedprox.train(PLAN | {"privacy": NOISY, "measure": {"every": 2}}, population=population, out=out)
    spent = Accountant(devices=8, per_round=4, noise_multiplier=0.8, delta=1e-3)
    assert result.history.column("epsilon") == [0.0, spent.epsilon(2), spent.epsilon(3)]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["epsilon"] for row in rows] == result.history.column("epsilon")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["privacy"] == {"epsilon": spent.epsilon(3), "delta": 1e-3}


def test_the_report_shows_epsilon_and_says_what_it_covers(population, tmp_path):
    pytest.importorskip("plotly")
    for name, privacy in (("private", NOISY), ("clipped", {"clip": 0.5}), ("plain", {})):
        fedprox.train(PLAN | {"privacy": privacy}, population=population, out=tmp_path / name)
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    spent = Accountant(devices=8, per_round=4, noise_multiplier=0.8, delta=1e-3).epsilon(3)
    assert f"the models of 3 rounds have epsilon = {spent:.3g} at delta = 0.001" in page
    assert "clips updates without noise, which promises no privacy" in page
    assert 'id="plot-epsilon"' in page
    alone = write_report([tmp_path / "plain"], tmp_path / "alone.html").read_text()
    assert "plot-epsilon" not in alone
    assert "have epsilon =" not in alone


# The accountant


def test_epsilon_is_that_of_dp_accounting_with_the_sensitivity_of_a_replacement():
    dp = pytest.importorskip("dp_accounting")
    direct = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    direct.compose(dp.SampledWithoutReplacementDpEvent(1000, 10, dp.GaussianDpEvent(1.5 / 2)), 100)
    ours = Accountant(devices=1000, per_round=10, noise_multiplier=1.5, delta=1e-5)
    assert ours.epsilon(100) == pytest.approx(direct.get_epsilon(1e-5), rel=1e-12)


@pytest.mark.parametrize(("devices", "published"), [(2_000_000, 9.86), (3_000_000, 6.73), (10_000_000, 3.27)])
def test_published_values_of_a_production_model(devices, published):
    """Ramaswamy et al., "Training Production Language Models without Memorizing User Data" (2020): bounds by size.

    2,000 rounds of 20,000 of N devices, without replacement, z = 0.8, delta = N^-1.1. They take S for the sensitivity
    where we take 2 S, so their z is our 1.6, and they turn divergences into epsilon by the older, looser rule.
    """
    delta = devices**-1.1
    spent = Accountant(devices=devices, per_round=20_000, noise_multiplier=1.6, delta=delta)
    orders, divergences = spent.renyi()
    looser = np.min(2000 * divergences + math.log(1 / delta) / (orders - 1))
    assert looser == pytest.approx(published, abs=0.005)
    assert 0.8 * looser < spent.epsilon(2000) < looser


def test_without_sampling_epsilon_is_close_above_the_exact_one_of_the_gaussian_mechanism():
    dp = pytest.importorskip("dp_accounting")
    for rounds, z in ((1, 4.0), (16, 8.0), (100, 5.0)):
        exact = dp.get_epsilon_gaussian(z / 2 / math.sqrt(rounds), 1e-5)
        epsilon = Accountant(devices=10, per_round=10, noise_multiplier=z, delta=1e-5).epsilon(rounds)
        assert exact <= epsilon <= 1.2 * exact


def test_one_round_of_order_two_worked_by_hand():
    """For order 2 the bound is log(1 + q^2 4 (e^(2 / (2 s^2)) - 1)) where that is the smaller, with s = z / 2."""
    orders, divergences = Accountant(devices=50, per_round=5, noise_multiplier=6.0, delta=1e-5).renyi()
    at_two = float(divergences[orders.tolist().index(2.0)])
    assert at_two == pytest.approx(math.log(1 + 0.1**2 * 4 * math.expm1(1 / 3.0**2)), rel=1e-9)


def test_more_rounds_and_more_devices_cost_more_and_more_noise_costs_less():
    def epsilon(rounds=50, devices=1000, per_round=20, noise=1.0, delta=1e-5):
        return Accountant(devices, per_round, noise, delta).epsilon(rounds)

    for name, values in (("rounds", (0, 1, 50, 500)), ("per_round", (20, 100))):
        found = [epsilon(**{name: value}) for value in values]
        assert found == sorted(found)
        assert len(set(found)) == len(found)
    for name, values in (("noise", (0.0, 0.1, 1.0, 4.0)), ("devices", (20, 1000)), ("delta", (1e-9, 1e-5, 1e-3))):
        found = [epsilon(**{name: value}) for value in values]
        assert found == sorted(found, reverse=True)
        assert len(set(found)) == len(found)
    assert math.isfinite(epsilon(noise=0.1))


def test_a_missing_library_is_named_before_anything_is_written(population, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(FedProxError, match=r"dp-accounting, which is not installed: pip install 'fedprox\[privacy\]'"):
        fedprox.train(PLAN | {"privacy": NOISY}, population=population, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert run(population, {"clip": 1.0}, rounds=1).summary["ended"] == "finished"


# What is refused

PRIVATE = {"clip": 1.0, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"privacy": {"clip": -1.0}}, "`privacy.clip` must be a number >= 0; got -1.0"),
        ({"privacy": {"clip": math.inf}}, "`privacy.clip` must be a number >= 0; got inf"),
        ({"privacy": {"noise_multiplier": -0.1}}, "`privacy.noise_multiplier` must be a number >= 0; got -0.1"),
        ({"privacy": {"noise_multiplier": 1.0}}, "noise protects only updates of bounded norm; got 0.0"),
        ({"privacy": {"delta": 0.0}}, "`privacy.delta` must be a number in (0, 1); got 0.0"),
        ({"privacy": {"delta": 1.0}}, "`privacy.delta` must be a number in (0, 1); got 1.0"),
        ({"privacy": {"where": "both"}}, "`privacy.where` must be one of server, client; got 'both'"),
        ({"privacy": {"clp": 1.0}}, "unknown key `privacy.clp`; did you mean `privacy.clip`?"),
        ({"privacy": PRIVATE, "method": {"name": "scaffold"}}, "got 'scaffold', which sends more"),
        ({"privacy": PRIVATE, "method": {"name": "feddane"}}, "got 'feddane', which sends more"),
        ({"privacy": PRIVATE, "method": {"name": "feddyn"}}, "got 'feddyn', which sends more"),
        ({"privacy": PRIVATE, "method": {"name": "fednova"}}, "got 'fednova', which sends more"),
        ({"privacy": PRIVATE, "devices": {"sampling": "proportional"}}, "`devices.sampling` must be 'uniform'"),
        ({"privacy": PRIVATE, "method": {"mu": "auto"}}, "`method.mu` must be a number with"),
        ({"privacy": PRIVATE, "method": {"mu": "adaptive"}}, "`method.mu` must be a number with"),
        ({"privacy": PRIVATE, "stop": {"converged": True}}, "`stop.converged` must be false with"),
        ({"privacy": PRIVATE, "stop": {"diverged": True}}, "`stop.diverged` must be false with"),
        ({"privacy": PRIVATE, "systems": {"model": "clock"}}, "`systems.model` must be 'stragglers' with"),
    ],
)
def test_settings_that_break_the_promise_are_refused(settings, sentence):
    with pytest.raises(ConfigError) as refused:
        Config.from_dict(settings)
    assert sentence in str(refused.value)


def test_rules_for_mu_and_stopping_go_with_clipping_alone():
    Config.from_dict({"privacy": {"clip": 1.0}, "method": {"mu": "auto"}, "stop": {"converged": True}})


def test_objects_that_break_the_promise_are_refused(population):
    class Telling(Method):
        def reply(self, solution):
            return Reply(solution.params, state=solution.params)

    config = PLAN | {"privacy": NOISY}
    with pytest.raises(ConfigError, match=r"must declare .sends_model_only. with .*got 'telling'"):
        fedprox.train(config, population=population, method=Telling("telling"))
    with pytest.raises(ConfigError, match=r"`mu_controller` must be constant with .*; got DriftMu"):
        fedprox.train(config, population=population, mu_controller=DriftMu.start(0.01))
    with pytest.raises(ConfigError, match=r"`privacy.delta` must be below 1 / 8, .*; got 0.2"):
        fedprox.train(PLAN | {"privacy": NOISY | {"delta": 0.2}}, population=population)
