"""Merging: the mean as a sum, the weighted median, and methods whose server sees every reply."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprox
from conftest import population_of
from fedprox.core.errors import ConfigError
from fedprox.methods import Method, Received, Reply
from fedprox.methods.merging import MergeRule, mean, median, merge_received
from fedprox.methods.merging.median import weighted_median
from in_process_ray import cluster_of

POPULATION = population_of([12, 20, 16, 24, 8])
SETTINGS = {"rounds": 3, "method": {"mu": 0.5}, "devices": {"per_round": 4}, "solver": {"epochs": 2}}


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), min_size=1, max_size=9),
)
def test_the_median_is_that_of_the_values_repeated_by_their_weights(pairs):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    expected = np.median(np.repeat(values, weights))
    assert weighted_median(values.astype(np.float32), weights / weights.sum()) == np.float32(expected)


def test_each_entry_has_its_own_median():
    replies = [{"w": np.array([1, 9], np.float32)}, {"w": np.array([2, 8], np.float32)}, {"w": np.array([9, 1.0])}]
    merged = median().merge([{"w": one["w"].astype(np.float32)} for one in replies], np.array([0.3, 0.3, 0.4]))
    assert merged["w"].tolist() == [2, 8]
    assert merged["w"].dtype == np.float32


def test_less_than_half_of_the_weight_cannot_move_the_median_beyond_the_others():
    good, bad = np.array([1.0, 2.0], np.float32), np.array([np.nan, np.inf, 1e30], np.float32)
    weights = np.array([0.3, 0.25, 0.15, 0.15, 0.15])
    assert 1 <= weighted_median(np.concatenate([good, bad]), weights) <= 2


def test_what_is_summed_follows_the_rule_times_the_mass_of_the_round():
    received = [
        Received(0, Reply(np.float64(1), np.float64(10)), 0.5, 0.1, 3),
        Received(1, Reply(np.float64(3), np.float64(20)), 0.5, 0.3, 3),
    ]
    assert merge_received(mean(), received) == pytest.approx((2.0, 0.1 * 10 + 0.3 * 20))
    assert merge_received(median(), received) == pytest.approx((2.0, 0.4 * 20))


def test_a_round_of_the_median_is_worked_out_by_hand(tmp_path):
    result = fedprox.train({**SETTINGS, "rounds": 1, "merge": {"rule": "median"}}, population=POPULATION)
    seen = fedprox.train({**SETTINGS, "rounds": 1}, population=POPULATION, method=Collecting())
    weights = np.array([one.weight for one in seen_replies])
    for name, array in result.params.items():
        stacked = np.stack([one.reply.averaged[name] for one in seen_replies])
        assert np.array_equal(array, weighted_median(stacked, weights)), name
    assert weights.sum() == pytest.approx(1)
    assert [one.steps for one in seen_replies] == seen.devices[0]["steps"]


seen_replies = []


@dataclass(frozen=True)
class Collecting(Method):
    """A method whose server takes the reply of the device with most steps."""

    name: str = "collecting"
    proximal: bool = True
    needs_every_reply: bool = True
    sends_model_only: bool = True

    def merge_replies(self, server, params, replies):
        seen_replies[:] = replies
        return max(replies, key=lambda one: (one.steps, one.device)).reply.averaged, server


def on_ray(monkeypatch, settings, **more):
    monkeypatch.setattr("fedprox.engines.ray.Cluster", lambda address, workers: cluster_of(workers))
    return fedprox.train({**settings, "engine": {"name": "ray", "workers": 2}}, population=POPULATION, **more)


@pytest.mark.filterwarnings("ignore:with merge.rule = 'median' the server of scaffold")
@pytest.mark.parametrize("method", ["fedprox", "scaffold", "fednova"])
def test_the_median_is_the_same_on_a_cluster(method, monkeypatch):
    settings = {**SETTINGS, "method": {"name": method}, "merge": {"rule": "median"}}
    here = fedprox.train(settings, population=POPULATION)
    there = on_ray(monkeypatch, settings)
    plain = fedprox.train({**settings, "merge": {"rule": "mean"}}, population=POPULATION)
    for name, array in here.params.items():
        assert np.array_equal(array, there.params[name]), name
        assert not np.array_equal(array, plain.params[name]), name


def test_a_server_that_sees_every_reply_is_the_same_on_a_cluster(monkeypatch):
    here = fedprox.train(SETTINGS, population=POPULATION, method=Collecting())
    there = on_ray(monkeypatch, SETTINGS, method=Collecting())
    assert np.array_equal(here.params["weight"], there.params["weight"])


def test_rules_that_see_every_reply_are_refused_with_privacy_and_methods_that_merge_themselves():
    private = {**SETTINGS, "merge": {"rule": "median"}, "privacy": {"clip": 1.0}}
    with pytest.raises(ConfigError, match=r"`merge.rule` must be 'mean' with `privacy.clip`.* 'median'"):
        fedprox.train(private, population=POPULATION)
    with pytest.raises(ConfigError, match=r"`merge.rule` must be 'mean' with `privacy.clip`.*'collecting'"):
        fedprox.train({**private, "merge": {}}, population=POPULATION, method=Collecting())
    with pytest.raises(ConfigError, match=r"`merge.rule` must be 'mean' with method.name = 'collecting'"):
        fedprox.train({**SETTINGS, "merge": {"rule": "median"}}, population=POPULATION, method=Collecting())
    with pytest.raises(ConfigError, match=r"`merge.rule` must be one of mean, median, .*, module:object; got 'mode'"):
        fedprox.train({**SETTINGS, "merge": {"rule": "mode"}})


def shortened(strength: float = 0.5):
    return Nearest(strength=strength)


@dataclass(frozen=True)
class Nearest(MergeRule):
    """A rule of a user's own, with a key: the heaviest reply, shortened."""

    strength: float = 1.0
    name: str = "nearest"
    needs_every_reply: bool = True

    def merge(self, replies, weights):
        heaviest = replies[int(weights.argmax())]
        return {name: array * np.float32(self.strength) for name, array in heaviest.items()}


def test_a_rule_of_ones_own_is_named_in_the_config(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    settings = {**SETTINGS, "rounds": 1, "merge": {"rule": "test_merging:shortened", "strength": 0.0}}
    result = fedprox.train(settings, population=POPULATION)
    assert not any(np.any(array) for array in result.params.values())
    with pytest.raises(ConfigError, match=r"unknown key `merge.strenth`"):
        fedprox.train({**settings, "merge": {"rule": "test_merging:shortened", "strenth": 0.0}})
