"""Controllers of mu: sequences worked by hand, limits, bad input, and what a checkpoint keeps."""

import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprox
from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.methods import mu
from fedprox.methods.mu import AdaptiveMu, ConstantMu, DriftMu, Signals

LEARNING_RATE = 0.01
NAN = float("nan")


def seen(rule, losses, **round):
    """Return the mu after each loss."""
    result = []
    for loss in losses:
        rule = rule.after(Signals(loss, **round))
        result.append(rule.mu)
    return result


def updates(agreement):
    """Return the signals of a round with two equal devices whose updates agree to this degree."""
    return {"weights": (0.5, 0.5), "drift2": (1.0, 1.0), "mean_drift2": 0.5 + 0.5 * agreement}


# The paper's rule


def test_adaptive_rises_with_every_increase():
    assert seen(AdaptiveMu(0.0), [1.0, 2.0, 3.0, 2.5, 2.6]) == [0.0, 0.1, 0.2, 0.2, 0.3]


def test_adaptive_falls_after_five_decreases_and_counts_again():
    assert seen(AdaptiveMu(1.0), range(20, 8, -1)) == [1.0] * 5 + [0.9] * 5 + [0.8, 0.8]


def test_adaptive_counts_decreases_in_a_row_only():
    assert seen(AdaptiveMu(1.0), [9, 8, 7, 6, 5, 6, 5, 4, 3, 2, 1]) == [1.0] * 5 + [1.1] * 5 + [1.0]


def test_an_equal_loss_is_no_increase_and_ends_a_row_of_decreases():
    assert seen(AdaptiveMu(1.0), [9, 8, 7, 6, 5, 5, 4, 3, 2, 1, 0]) == [1.0] * 10 + [0.9]


def test_adaptive_is_never_negative():
    assert seen(AdaptiveMu(0.05), [6, 5, 4, 3, 2, 1])[-1] == 0.0


def test_adaptive_takes_a_loss_that_is_not_finite_for_an_increase():
    assert seen(AdaptiveMu(0.0), [1.0, NAN, math.inf, 0.5, 0.6]) == [0.0, 0.1, 0.2, 0.2, 0.3]


def test_adaptive_step_and_patience_can_be_set():
    assert seen(AdaptiveMu(1.0, step=0.25, patience=2), [3, 2, 1, 4]) == [1.0, 1.0, 0.75, 1.0]


def test_tenths_up_and_down_end_where_they_began():
    rule = AdaptiveMu(0.0, patience=1)
    assert seen(rule, [1, 2, 3, 4, 3, 2, 1])[-1] == 0.0


# Drift


def test_drift_starts_at_a_hundred_steps():
    assert DriftMu.start(0.01).mu == 1.0
    assert DriftMu.start(0.5).mu == 0.02


def test_drift_by_hand():
    """Up e^0.5; then, with one turn, the step is 0.5 / (1 + 1/7) = 0.4375, times 1/4 + 4 * 0.2."""
    rule = DriftMu.start(LEARNING_RATE).after(Signals(2.0)).after(Signals(2.5, **updates(0.9)))
    assert rule.mu == pytest.approx(math.exp(0.5))
    rule = rule.after(Signals(2.4, **updates(0.2)))
    assert rule.mu == pytest.approx(math.exp(0.5 - 0.4375 * 1.05))
    assert rule.turns == 1


def test_drift_keeps_its_balance_at_one_rise_in_five_where_the_draw_of_devices_rules():
    rule = DriftMu(1.0, LEARNING_RATE, previous=1.0, dissimilarity=1e9)
    up = math.log(rule.after(Signals(2.0, **updates(0.0))).mu)
    down = math.log(rule.after(Signals(0.5, **updates(0.0))).mu)
    assert 0.2 * up + 0.8 * down == pytest.approx(0.0)


def test_disagreement_does_not_slow_the_fall_where_the_draw_of_devices_hides_it():
    falls = [seen(DriftMu.start(LEARNING_RATE), [2.0, 1.9], **updates(q))[-1] for q in (-0.5, 0.0)]
    assert falls[0] == falls[1]


def test_drift_starts_lower_where_gradients_agree():
    assert DriftMu.start(LEARNING_RATE).after(Signals(2.0, dissimilarity=2.0)).mu == pytest.approx(0.75)
    assert DriftMu.start(LEARNING_RATE).after(Signals(2.0, dissimilarity=math.inf)).mu == 1.0
    assert DriftMu.start(LEARNING_RATE).after(Signals(2.0, dissimilarity=1.0)).mu == pytest.approx(1e-3)


def test_with_all_devices_mu_rises_where_updates_cancel_more_than_gradients():
    """B = 2 and r = 0.1: c = 0.4, so log mu rises by 0.5 * 0.6^2; with r = 1/4 = 1 / B^2 nothing is lost."""
    rule = DriftMu(1.0, LEARNING_RATE, previous=1.0, dissimilarity=2.0)
    round = {"weights": (0.5, 0.5), "drift2": (1.0, 1.0), "coverage": 1.0, "dissimilarity": 2.0}
    assert rule.after(Signals(0.9, **round, mean_drift2=0.1)).mu == pytest.approx(math.exp(0.18))
    assert rule.after(Signals(0.9, **round, mean_drift2=0.25)).mu == pytest.approx(1.0)


def test_the_noise_of_the_draw_by_hand():
    """Two of many equal devices: v = 1/2, B^2 = 1.5: n = 0.25 / 1.25 = 0.2; r = 1/2, so q = 0 and c = 0."""
    rule = DriftMu(1.0, LEARNING_RATE, previous=1.0, dissimilarity=math.sqrt(1.5))
    changed = rule.after(Signals(0.9, **updates(0.0), dissimilarity=1.2))
    assert math.log(changed.mu) == pytest.approx(0.5 * (0.6 * 1.0 - 0.2 / 4))
    assert changed.dissimilarity == 1.2


def test_drift_falls_fast_on_devices_that_agree_and_stays_above_its_floor():
    mus = seen(DriftMu.start(LEARNING_RATE), range(100, 0, -1), **updates(0.8))
    assert mus[4] < 1e-2
    assert mus[-1] == pytest.approx(1e-5 / LEARNING_RATE)


def test_drift_takes_a_loss_that_is_not_finite_for_a_rise():
    mus = seen(DriftMu.start(LEARNING_RATE), [1.0, NAN, NAN, 5.0], weights=(0.5, 0.5), drift2=(NAN, 1.0))
    assert mus == pytest.approx([1.0, math.exp(0.5), math.exp(1.0), math.exp(1.0)])


def test_drift_steps_shrink_with_turns():
    rule = DriftMu.start(LEARNING_RATE)
    for loss in [1.0, 2.0] * 20:
        before, rule = rule, rule.after(Signals(loss))
    assert rule.turns == 38
    assert math.log(rule.mu / before.mu) == pytest.approx(0.5 / (1 + 38 / 7))


losses = st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=60)
rounds = st.tuples(
    st.floats(0, 1e30), st.floats(0, 1e30), st.floats(0, 1e30), st.floats(0.01, 0.99), st.floats(0, 1.001)
)
dissimilarities = st.none() | st.just(NAN) | st.floats(min_value=0.99)


@given(losses, rounds, dissimilarities, st.floats(1e-5, 10.0))
def test_learning_rate_times_drift_mu_stays_in_its_bounds(losses, round, b, learning_rate):
    first, second, mean, weight, coverage = round
    rule = DriftMu.start(learning_rate)
    for loss in losses:
        rule = rule.after(Signals(loss, (weight, 1 - weight), (first, second), mean, coverage, b))
        assert 1e-5 * (1 - 1e-9) <= learning_rate * rule.mu <= 1 + 1e-9


# What a controller sees


def test_agreement_by_hand():
    """d_1 = (3, 0), d_2 = (0, 4), weights 1/4 and 3/4: r = (0.75^2 + 3^2) / (9/4 + 12) = 9.5625 / 14.25, s = 0.625."""
    signals = Signals(None, (0.25, 0.75), (9.0, 16.0), 0.75**2 + 3.0**2)
    assert signals.agreement == pytest.approx((9.5625 / 14.25 - 0.625) / 0.375)


@pytest.mark.parametrize(
    "signals",
    [
        Signals(1.0),
        Signals(1.0, (1.0,), (2.0,), 2.0),
        Signals(1.0, (1.0, 1e-20), (2.0, 1.0), 2.0),
        Signals(1.0, (0.5, 0.5), (0.0, 0.0), 0.0),
        Signals(1.0, (0.5, 0.5), (NAN, 1.0), NAN),
        Signals(1.0, (0.5, 0.5), (math.inf, 1.0), math.inf),
    ],
)
def test_no_agreement_where_nothing_can_be_said(signals):
    assert signals.agreement is None


# State, config, whole runs


@pytest.mark.parametrize("rule", [ConstantMu(0.3), AdaptiveMu(0.2, 0.05, 3), DriftMu.start(0.03)])
def test_a_restored_controller_goes_on_as_if_never_stopped(rule):
    start = rule
    for loss in (3.0, 2.0, 2.5, NAN, 2.4, 2.3):
        rule = rule.after(Signals(loss, **updates(0.1)))
    back = mu.restore(start, json.loads(json.dumps(rule.state(), allow_nan=False)))
    assert back == rule
    for loss in (2.2, 2.1, 2.6):
        back, rule = back.after(Signals(loss)), rule.after(Signals(loss))
    assert back == rule


def test_build_follows_the_config():
    def built(**method):
        return mu.build(Config.from_dict({"method": method, "solver": {"learning_rate": 0.03}}), devices=30)

    assert built(mu=0.1) == ConstantMu(0.1)
    assert built(mu="adaptive", mu_initial=1.0, mu_step=0.2, mu_patience=3) == AdaptiveMu(1.0, 0.2, 3)
    assert built(mu="drift") == DriftMu.start(0.03)


@pytest.mark.parametrize(
    ("devices", "rule"), [(21, AdaptiveMu(0.0)), (20, DriftMu.start(0.01)), (5, DriftMu.start(0.01))]
)
def test_auto_takes_the_rule_for_the_share_of_devices_in_a_round(devices, rule):
    config = Config.from_dict({"method": {"mu": "auto"}, "devices": {"per_round": 10}})
    assert mu.build(config, devices) == rule


@pytest.mark.parametrize("value", [-1.0, math.inf, True])
def test_bad_mu_is_refused(value):
    with pytest.raises(ConfigError) as error:
        Config.from_dict({"method": {"mu": value}})
    assert str(error.value) == f"`method.mu` must be a number >= 0, 'adaptive', 'drift' or 'auto'; got {value!r}"


def test_an_unknown_rule_for_mu_is_refused():
    with pytest.raises(
        ConfigError, match=r"`method.mu` must be one of adaptive, auto, drift, .* a number >= 0; got 'often'"
    ):
        Config.from_dict({"method": {"mu": "often"}})


@pytest.mark.parametrize("rule", ["adaptive", "drift", "auto"])
def test_rules_that_need_every_loss_say_so(rule):
    with pytest.raises(ConfigError, match=rf"`measure.every` must be 1 with `method.mu = '{rule}'`.*; got 2"):
        Config.from_dict({"method": {"mu": rule}, "measure": {"every": 2}})


SMALL = {
    "data": {"devices": 12},
    "solver": {"epochs": 2},
    "devices": {"stragglers": 0.5},
    "checkpoint": {"every": 3},
    "engine": {"workers": 1},
}


@pytest.mark.parametrize(
    "method", [{"mu": "adaptive", "mu_initial": 1.0, "mu_patience": 2}, {"mu": "drift"}, {"mu": "auto"}]
)
def test_a_resumed_run_has_the_same_mu(method, tmp_path):
    settings = {**SMALL, "method": method}
    whole = fedprox.train({**settings, "rounds": 8})
    fedprox.train({**settings, "rounds": 4}, out=tmp_path / "run")
    resumed = fedprox.train({**settings, "rounds": 8}, out=tmp_path / "run", resume=True)
    assert resumed.devices.column("mu") == whole.devices.column("mu")
    assert resumed.history.column("train_loss") == whole.history.column("train_loss")
    assert len(set(whole.devices.column("mu"))) > 1


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[1] / "docs" / "choosing-mu.md").read_text()
    names = {"__name__": "example"}
    exec(page.partition("```python")[2].partition("```")[0], names)
    assert names["result"].devices.column("mu") == [1.0, 0.5, 0.25, 0.125, 0.0625]  # type: ignore[attr-defined]


def test_drift_distinguishes_similar_devices_from_different_ones():
    settings = {**SMALL, "rounds": 12, "method": {"mu": "drift"}, "solver": {"epochs": 20}}
    alike = fedprox.train({**settings, "data": {"name": "synthetic_iid"}})
    different = fedprox.train({**settings, "data": {"name": "synthetic", "alpha": 1.0, "beta": 1.0}})
    assert alike.devices[-1]["mu"] < 0.01
    assert different.devices[-1]["mu"] > 0.1


def test_a_rule_of_ones_own_sees_how_far_the_devices_went():
    seen = []

    @dataclass(frozen=True)
    class Watching:
        mu: float = 0.5

        def after(self, signals):
            seen.append(signals)
            return self

        def state(self):
            return {}

    models = []
    settings = {"rounds": 2, "devices": {"per_round": 1}}
    fedprox.train(settings, mu_controller=Watching(), callbacks=[lambda progress: models.append(progress.params)])
    assert seen[0].drift2 == ()
    for signals, before, after in zip(seen[1:], models[:-1], models[1:], strict=True):
        moved = sum(np.sum((after[name] - before[name]).astype(float) ** 2) for name in before)
        assert moved > 0
        assert signals.drift2 == pytest.approx((moved,))  # the only device's model is the next one
        assert signals.mean_drift2 == pytest.approx(moved)


def test_auto_holds_mu_with_all_devices_that_differ():
    settings = {"rounds": 20, "data": {"devices": 12}, "devices": {"per_round": 12}, "engine": {"workers": 1}}
    result = fedprox.train({**settings, "method": {"mu": "auto"}})
    assert result.devices[-1]["mu"] > 0.5  # without the rise where updates cancel it sinks from the start


def test_the_agreement_of_extrapolated_steps_is_that_of_the_mean():
    seen = []

    @dataclass(frozen=True)
    class Watching:
        mu: float = 1.0

        def after(self, signals):
            seen.append(signals)
            return self

        def state(self):
            return {}

    settings = {"rounds": 3, "method": {"name": "fedexprox"}, "solver": {"epochs": 2}}
    fedprox.train(settings, mu_controller=Watching())
    assert all(0 < signals.ratio <= 1 for signals in seen[1:])
    assert all(0 < signals.coverage < 1 for signals in seen[1:])
    assert all(signals.dissimilarity > 1 for signals in seen)


def test_auto_warns_of_full_participation_without_b():
    settings = {"rounds": 1, "data": {"devices": 3}, "method": {"mu": "auto"}, "solver": {"epochs": 1}}
    without = {"measure": {"dissimilarity": False}}
    with pytest.warns(UserWarning, match=r"all 3 devices in every round needs `measure.dissimilarity` = true"):
        fedprox.train({**settings, **without, "devices": {"per_round": 3}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedprox.train({**settings, "devices": {"per_round": 3}})
        fedprox.train({**settings, **without, "devices": {"per_round": 2}})
        fedprox.train({**settings, **without, "method": {"mu": 0.1}, "devices": {"per_round": 3}})
