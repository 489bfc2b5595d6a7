"""Robust merge rules: against plain definitions, their limits, and what they withstand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

import fedprox
from conftest import population_of
from fedprox import methods
from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.methods.merging import (
    build,
    centered_clipping,
    geometric_median,
    krum,
    mean,
    median,
    multi_krum,
    trimmed_mean,
)
from fedprox.methods.merging.krum import krum_scores
from fedprox.methods.merging.trimmed_mean import weighted_trimmed_mean

RULES = {
    "median": median(),
    "trimmed_mean": trimmed_mean(0.2),
    "krum": krum(1),
    "multi_krum": multi_krum(1),
    "geometric_median": geometric_median(),
    "centered_clipping": centered_clipping(),
}
POPULATION = population_of([12, 20, 16, 24, 8, 15])
SETTINGS = {"rounds": 3, "method": {"mu": 0.5}, "devices": {"per_round": 5}, "solver": {"epochs": 2}}


def replies(count, size=4, seed=0):
    random = np.random.default_rng(seed)
    return [
        {"w": random.normal(size=(2, size)).astype(np.float32), "b": np.float32(random.normal())} for _ in range(count)
    ]


@pytest.mark.parametrize("name", RULES)
def test_equal_replies_merge_to_themselves(name):
    one = replies(1)[0]
    weights = np.array([0.1, 0.3, 0.2, 0.2, 0.2])
    merged = RULES[name].merge_around({"w": one["w"] - 1, "b": one["b"]}, [one] * 5, weights)
    np.testing.assert_allclose(merged["w"], one["w"], rtol=1e-6)
    np.testing.assert_allclose(merged["b"], one["b"], rtol=1e-6)
    assert merged["w"].dtype == np.float32
    assert merged["w"].shape == (2, 4)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "geometric_median", "centered_clipping"])
def test_a_weight_of_two_counts_as_two_replies(name):
    some = replies(5)
    repeated = RULES[name].merge_around(some[0], [some[0], *some], np.full(6, 1 / 6))
    weighted = RULES[name].merge_around(some[0], some, np.array([2, 1, 1, 1, 1]) / 6)
    np.testing.assert_allclose(weighted["w"], repeated["w"], rtol=1e-5, atol=1e-6)


def test_a_heavy_reply_is_near_itself_by_its_weight():
    rows = np.array([[0.0], [1.0], [1.1], [5.0]])
    assert np.argmin(krum_scores(rows, np.full(4, 0.25), 1)) in (1, 2)
    assert np.argmin(krum_scores(rows, np.array([0.15, 0.15, 0.15, 0.55]), 1)) == 3


@pytest.mark.parametrize("count", range(3, 40))
@pytest.mark.parametrize("bad", [np.inf, np.nan, -np.inf, 1e30])
def test_what_is_trimmed_does_not_count_through_rounding(count, bad):
    for trimmed in range(1, (count + 1) // 2):
        values = np.array([1.0] * (count - trimmed) + [bad] * trimmed)
        assert weighted_trimmed_mean(values, np.full(count, 1 / count), trimmed / count) == pytest.approx(1.0)
        assert trimmed_mean(trimmed / count).survives(count) == trimmed


def test_no_trim_is_the_mean_bit_for_bit():
    some, weights = replies(5), np.array([0.1, 0.3, 0.2, 0.2, 0.2])
    assert np.array_equal(trimmed_mean(0.0).merge(some, weights)["w"], mean().merge(some, weights)["w"])


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 5)), min_size=3, max_size=9), st.integers(1, 4))
def test_the_trimmed_mean_is_that_of_the_values_repeated_by_their_weights(pairs, tenths):
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    every = np.sort(np.repeat(values, 10 * counts)).astype(float)
    cut = len(every) * tenths // 10
    found = weighted_trimmed_mean(values.astype(float), counts / counts.sum(), tenths / 10)
    assert found == pytest.approx(every[cut : len(every) - cut].mean(), abs=1e-9)


def test_krum_scores_are_those_of_the_paper_with_equal_weights():
    rows, byzantine = np.random.default_rng(1).normal(size=(9, 5)), 2
    expected = [np.sort(((rows - row) ** 2).sum(axis=1))[1 : len(rows) - byzantine - 1].sum() for row in rows]
    np.testing.assert_allclose(krum_scores(rows, np.full(9, 1 / 9), byzantine), expected, rtol=1e-9)


def test_the_geometric_median_minimises_the_sum_of_distances():
    rows, weights = np.random.default_rng(2).normal(size=(7, 3)), np.array([1, 2, 1, 3, 1, 1, 2]) / 11
    merged = geometric_median(iterations=500).merge(list(rows), weights)
    exact = optimize.minimize(lambda z: weights @ np.linalg.norm(rows - z, axis=1), rows.mean(axis=0), tol=1e-12)
    np.testing.assert_allclose(merged, exact.x, atol=1e-4)


def test_centred_clipping_with_a_large_radius_is_the_mean():
    some, weights = replies(5), np.array([0.1, 0.3, 0.2, 0.2, 0.2])
    merged = centered_clipping(radius=1e6).merge_around(some[0], some, weights)
    np.testing.assert_allclose(merged["w"], mean().merge(some, weights)["w"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", [1e9, np.nan, np.inf])
def test_one_attacker_of_six_does_not_carry_the_model_away(name, bad):
    some = replies(5)
    attacked = [*some, {"w": np.full((2, 4), bad, np.float32), "b": np.float32(bad)}]
    merged = RULES[name].merge_around(some[0], attacked, np.full(6, 1 / 6))
    assert np.abs(merged["w"]).max() <= max(np.abs(one["w"]).max() for one in some)


@pytest.mark.parametrize(
    ("method", "rule", "warning"),
    [
        ("scaffold", "median", "the server of scaffold no longer holds the sum of its devices' states"),
        ("fedadmm", "krum", "the server of fedadmm no longer holds the sum of its devices' states"),
        ("fednova", "multi_krum", "compares whole replies, and those of fednova have numbers besides parameters"),
        ("fedexprox", "centered_clipping", "compares whole replies, and those of fedexprox have numbers"),
    ],
)
def test_a_rule_that_changes_the_method_is_warned_of(method, rule, warning):
    config = Config.from_dict({**SETTINGS, "method": {"name": method}, "merge": {"rule": rule}})
    with pytest.warns(UserWarning, match=warning):
        build(config.merge, methods.build(config.method, 0), config.privacy, per_round=5)


@pytest.mark.parametrize(("method", "rule"), [("fedprox", "krum"), ("fednova", "median"), ("scaffold", "mean")])
def test_a_rule_that_suits_the_method_is_not_warned_of(method, rule):
    config = Config.from_dict({**SETTINGS, "method": {"name": method}, "merge": {"rule": rule}})
    build(config.merge, methods.build(config.method, 0), config.privacy, per_round=5)


@pytest.mark.filterwarnings("ignore:with merge.rule", "ignore:merge.rule = ")
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("method", ["fedprox", "scaffold", "fednova", "fedexprox"])
def test_every_rule_trains_with_sums_and_partial_work(name, method):
    config = {**SETTINGS, "method": {"name": method}, "merge": {"rule": name}}
    config["devices"] = {"per_round": 5, "sampling": "proportional", "stragglers": 0.4}
    history = fedprox.train(config, population=POPULATION).history.column("train_loss")
    assert history[-1] < history[0]


@pytest.mark.parametrize("name", RULES)
def test_bits_do_not_depend_on_workers_or_interruptions(name, tmp_path):
    config = {**SETTINGS, "merge": {"rule": name}, "checkpoint": {"every": 1}}
    one = fedprox.train({**config, "engine": {"workers": 1}}, population=POPULATION)
    two = fedprox.train({**config, "engine": {"workers": 2}}, population=POPULATION)
    fedprox.train({**config, "rounds": 2}, population=POPULATION, out=tmp_path / "run")
    resumed = fedprox.train(config, population=POPULATION, out=tmp_path / "run", resume=True)
    for other in (two, resumed):
        assert all(np.array_equal(one.params[key], other.params[key]) for key in one.params)


@pytest.mark.parametrize(
    ("merge", "sentence"),
    [
        ({"rule": "trimmed_mean", "trim": 0.5}, r"`merge.trim` must be a number in \[0, 0.5\); got 0.5"),
        ({"rule": "krum", "byzantine": 3}, "`devices.per_round` must be at least 6 with merge.rule = 'krum'; got 5"),
        ({"rule": "krum", "byzantine": -1}, "`merge.byzantine` must be an integer >= 0; got -1"),
        ({"rule": "centered_clipping", "radius": -1.0}, "`merge.radius` must be a number >= 0; got -1"),
        ({"rule": "median", "trim": 0.1}, "merge.trim"),
    ],
)
def test_coefficients_out_of_range_are_refused(merge, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedprox.train({**SETTINGS, "merge": merge}, population=POPULATION)
