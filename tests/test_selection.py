"""Selection rules: cases worked by hand, statistics, the clock, resume and workers, and what is refused."""

import math

import numpy as np
import pytest

import fedprox
from conftest import population_of
from fedprox.core.errors import FedProxError
from fedprox.participation.known_devices import KnownDevice
from fedprox.participation.sampling import Cohort, SamplingView, merge_scale, merge_weights
from fedprox.participation.selection.candidates import choose_weighted, draw_by_size, draw_uniform
from fedprox.participation.selection.importance import Importance
from fedprox.participation.selection.loss import ByLoss
from fedprox.participation.selection.oort import Oort, utility
from fedprox.participation.selection.power_of_choice import PowerOfChoice
from fedprox.participation.selection.tiers import Tiers
from fedprox.report.reached_devices import count_reached
from fedprox.runs.reader import load_run

RULES = {
    "power_of_choice": {"candidates": 4},
    "loss": {"explore": 0.5},
    "oort": {},
    "importance": {},
    "tiers": {"tiers": 2},
    "available": {},
}
CLOCK = {"model": "clock", "profile": "phones", "deadline": 1e5}


def view_of(sizes, per_round, round=1, known=None, **more):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return SamplingView(round, per_round, offsets, 0, known or {}, **more)


# draws


def test_uniform_draws_take_those_that_are_here_and_not_taken():
    here = lambda devices: devices % 2 == 0  # noqa: E731
    counts = np.zeros(12)
    for round in range(2000):
        view = view_of([1] * 12, 2, round, here=here)
        counts[draw_uniform(view, 2, view.random(), {4})] += 1
    assert counts[[1, 3, 4, 5, 7, 9, 11]].sum() == 0
    even = counts[[0, 2, 6, 8, 10]]
    assert abs(even - 800).max() < 4 * math.sqrt(2000 * 0.4 * 0.6)


def test_draws_by_size_are_successive_draws():
    sizes, counts = [6, 3, 1], np.zeros(3)
    for round in range(3000):
        view = view_of(sizes, 1, round)
        drawn = draw_by_size(view, 2, view.random())
        assert len(set(drawn.tolist())) == 2
        counts[drawn] += 1
    # P(not among the two) = sum over orders: 0 is last with 3/10 * 1/7 + 1/10 * 3/9, and so on
    missing = np.array([0.3 / 7 + 0.1 / 3, 0.6 / 4 + 0.1 * 6 / 9, 0.6 * 3 / 4 + 0.3 * 6 / 7])
    assert counts / 3000 == pytest.approx(1 - missing, abs=0.035)


def test_a_weighted_choice_has_the_stated_probabilities():
    random, counts = np.random.default_rng(0), np.zeros(3)
    for _ in range(4000):
        counts[choose_weighted(np.arange(3), np.array([1.0, 2.0, 5.0]), 1, random)] += 1
    assert counts / 4000 == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.03)


# rules worked by hand


def test_power_of_choice_takes_the_highest_losses_of_its_candidates():
    losses = {0: 0.1, 1: 0.9, 2: 0.5, 3: 0.7}
    view = view_of([5, 5, 5, 5], 2, losses=lambda devices: {int(k): losses[int(k)] for k in devices})
    assert set(PowerOfChoice(candidates=4)(view).devices.tolist()) == {1, 3}
    first = draw_by_size(view, 2, view.random()).tolist()
    assert set(PowerOfChoice(candidates=2)(view).devices.tolist()) == set(first)  # d = K: by size alone


def test_recent_power_of_choice_takes_those_never_chosen_first():
    known = {0: KnownDevice(1, 3.0), 1: KnownDevice(1, 1.0), 2: KnownDevice(2, 2.0)}
    asked = []
    view = view_of([5] * 4, 2, 3, known, losses=asked.append)
    assert set(PowerOfChoice(candidates=4, recent=True)(view).devices.tolist()) == {3, 0}
    assert asked == []


def test_selection_by_loss_drops_the_lowest_and_explores():
    known = {k: KnownDevice(1, float(k)) for k in range(8)}
    counts = np.zeros(12)
    for round in range(400):
        chosen = ByLoss(dropped=0.75, sharpness=0.0, explore=0.5)(view_of([4] * 12, 2, round, known)).devices
        counts[chosen] += 1
    # v = 2 F: devices 6 and 7 are left, each half the time; the other place is uniform over the rest
    assert counts[[6, 7]].sum() == pytest.approx(400 + 400 / 11, abs=30)
    assert counts[[0, 1, 2, 3, 4, 5, 8, 9, 10, 11]].min() > 10
    sharp = ByLoss(dropped=0.0, sharpness=50.0, explore=0.0)(view_of([4] * 12, 2, 1, known)).devices
    assert set(sharp.tolist()) == {6, 7}


def test_selection_by_loss_explores_with_few_devices_a_round_too():
    known = {k: KnownDevice(1, float(k)) for k in range(8)}
    rule = ByLoss(dropped=0.0, sharpness=0.0, explore=0.1)  # 0.2 devices of a round of two
    rounds = [set(rule(view_of([4] * 100, 2, round, known)).devices.tolist()) for round in range(400)]
    explored = sum(len(chosen - set(known)) for chosen in rounds)
    assert explored == pytest.approx(400 * 0.2 * 92 / 99, abs=30)


def test_the_utility_of_oort_worked_by_hand():
    known = {0: KnownDevice(1, 1.0, 10.0), 1: KnownDevice(4, 3.0, 10.0), 2: KnownDevice(4, 1.0, 40.0)}
    view = view_of([10, 10, 10], 2, 4, known)
    found = utility(view, np.arange(3), penalty=2.0, preferred=0.5)
    clip = np.quantile([10.0, 30.0, 10.0], 0.95)
    lowest, width = 9.99, 30 - 9.99
    uncertain = [math.sqrt(0.1 * math.log(4) / last) for last in (1, 4, 4)]
    values = [(value - lowest) / width for value in (10, clip, 10)]
    expected = [values[0] + uncertain[0], values[1] + uncertain[1], (values[2] + uncertain[2]) * (10 / 40) ** 2]
    assert found == pytest.approx(expected)


def test_oort_explores_first_and_exploits_later():
    known = {k: KnownDevice(100, 1.0 + k) for k in range(10)}
    early = Oort()(view_of([5] * 50, 10, 1)).devices
    assert len(set(early.tolist())) == 10
    late = Oort(explore=0.2)(view_of([5] * 50, 10, 400, known)).devices
    assert (late < 10).sum() == 8
    seen = {k: KnownDevice(100, 1.0) for k in range(12)}
    assert len(Oort()(view_of([5] * 12, 10, 400, seen)).devices) == 10  # nobody is left to explore
    losses = {k: KnownDevice(100, 9.0 if k < 10 else 0.1) for k in range(12)}
    assert set(Oort()(view_of([5] * 12, 10, 400, losses)).devices.tolist()) == set(range(10))  # and nobody explores


def test_tiers_take_devices_of_one_speed():
    seconds = lambda devices: np.where(devices < 10, 1.0, 100.0) + devices * 1e-3  # noqa: E731
    tiers = set()
    for round in range(40):
        chosen = Tiers(tiers=2)(view_of([5] * 20, 4, round, seconds=seconds)).devices
        assert len(set((chosen < 10).tolist())) == 1
        tiers.add(bool(chosen[0] < 10))
    assert tiers == {True, False}
    known = {0: KnownDevice(1, 99.0), 15: KnownDevice(1, 1.0)}
    fast = [Tiers(tiers=2)(view_of([5] * 20, 4, r, known, seconds=seconds)).devices[0] < 10 for r in range(200)]
    assert np.mean(fast) == pytest.approx(2 / 3, abs=0.1)  # the tier with the higher loss, by rank


def test_tiers_are_drawn_by_the_rank_of_their_loss():
    seconds = lambda devices: 10.0 ** (devices // 10) + devices * 1e-3  # noqa: E731
    known = {0: KnownDevice(1, 2.0), 10: KnownDevice(1, 0.5), 20: KnownDevice(1, 9.0)}
    counts = np.zeros(4)
    for round in range(600):
        counts[Tiers(tiers=4)(view_of([5] * 40, 3, round, known, seconds=seconds)).devices[0] // 10] += 1
    assert counts / 600 == pytest.approx([0.2, 0.1, 0.3, 0.4], abs=0.06)  # nothing is known of the last: the worst


def test_importance_is_unbiased_over_its_draws():
    sizes = np.array([1, 2, 3, 14])
    known = {0: KnownDevice(1, 9.0), 2: KnownDevice(1, 0.5)}
    move, total, scales = np.array([1.0, -2.0, 4.0, 0.5]), [], []
    for round in range(6000):
        cohort = Importance(explore=0.5)(view_of(sizes, 3, round, known))
        kept = np.ones(len(cohort), bool)
        weights, scale = merge_weights(cohort, kept, by_draws=True), merge_scale(cohort, kept)
        assert weights.sum() == pytest.approx(1)
        total.append(scale * weights @ move[cohort.devices])
        scales.append(scale)
    p = sizes / sizes.sum()
    error = np.std(total) / math.sqrt(len(total))
    assert np.mean(total) == pytest.approx(p @ move, abs=4 * error)
    assert np.mean(scales) == pytest.approx(1, abs=4 * np.std(scales) / math.sqrt(len(scales)))
    assert max(scales) <= 2 + 1e-9  # 1 / explore
    one = Importance(explore=0.5)(view_of(sizes, 1, 0, known))
    q = 0.5 * p + 0.5 * np.array([9.0, 0, 1.5, 0]) / 10.5
    assert one.probability == pytest.approx(q[one.devices])


def test_importance_before_anything_is_known_is_sampling_by_size():
    cohort = Importance()(view_of([1, 2, 3], 5))
    assert merge_scale(cohort, np.ones(len(cohort), bool)) == 1.0
    assert merge_weights(cohort, np.ones(len(cohort), bool), by_draws=True) == pytest.approx(cohort.draws / 5)


def test_the_cohort_keeps_its_probabilities_when_some_are_left_out():
    cohort = Cohort(np.arange(3), np.ones(3, int), np.ones(3, int)).with_probability(np.ones(3) / 3, np.ones(3) / 3)
    assert cohort.only(np.array([True, False, True])).probability.tolist() == [1 / 3, 1 / 3]


# runs


def settings(rule, systems=None, **more):
    return {
        "rounds": 6,
        "checkpoint": {"every": 1},
        "solver": {"epochs": 2},
        "devices": {"per_round": 3, "sampling": rule, **RULES[rule]},
        "systems": systems or {},
        **more,
    }


@pytest.mark.parametrize("rule", RULES)
def test_runs_on_the_clock_are_the_same_when_resumed_and_with_one_worker(rule, tmp_path):
    population = population_of([8, 20, 5, 30, 12, 9, 9, 40], test=3)
    whole = fedprox.train(settings(rule, CLOCK), population=population)
    fedprox.train(settings(rule, CLOCK, rounds=3), population=population, out=tmp_path / "run")
    again = fedprox.train(
        settings(rule, CLOCK, engine={"workers": 1}), population=population, out=tmp_path / "run", resume=True
    )
    for name in ("train_loss", "simulated_seconds", "bytes"):
        assert whole.history.column(name) == again.history.column(name)
    assert whole.devices.column("device") == again.devices.column("device")
    assert all(sum(row["weight"]) == pytest.approx(1) for row in whole.devices if any(row["kept"]))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("tiers", "available")])
def test_rules_run_without_a_clock_whatever_is_measured(rule, tmp_path):
    population = population_of([8, 20, 5, 30, 12, 9, 9, 40], test=3)
    often = fedprox.train(settings(rule), population=population, out=tmp_path / "run")
    rarely = fedprox.train(settings(rule, measure={"every": 6, "devices": 2}), population=population)
    assert often.devices.column("device") == rarely.devices.column("device")
    reach = count_reached(load_run(tmp_path / "run"))
    assert reach.accuracy is not None
    assert 0 <= reach.accuracy.worst_tenth <= reach.accuracy.mean <= 1
    assert reach.asked_lean is None


def test_available_is_uniform():
    population = population_of([8, 20, 5, 30])
    runs = [
        fedprox.train({"rounds": 3, "devices": {"per_round": 2, "sampling": name}}, population=population)
        for name in ("uniform", "available")
    ]
    assert runs[0].history.column("train_loss") == runs[1].history.column("train_loss")


def test_the_model_moves_by_the_scale_of_importance():
    population = population_of([8, 20, 5, 30, 12, 9, 9, 40])
    result = fedprox.train(settings("importance"), population=population)
    scales = result.devices.column("scale")
    assert scales[0] == 1.0
    assert any(scale != 1 for scale in scales[1:])
    assert all(len(row["probability"]) == len(row["device"]) for row in result.devices)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"devices": {"sampling": "tiers"}}, r"`systems.model` must be 'clock' with devices.sampling = 'tiers'"),
        (
            {"devices": {"sampling": "power_of_choice", "candidates": 3}},
            r"`devices.candidates` must be at least `devices.per_round`, 10, or 0 for twice that; got 3",
        ),
        ({"devices": {"sampling": "oort", "explor": 0.1}}, r"unknown key `devices.explor`; did you mean"),
        ({"devices": {"sampling": "oort", "explore": 1.5}}, r"`devices.explore` must be a number in \[0, 1\]; got 1.5"),
        ({"devices": {"sampling": "uniform", "explore": 0.5}}, r"`devices.explore` must be left out with"),
        (
            {"devices": {"sampling": "importance"}, "method": {"name": "scaffold"}},
            r"must be one of fedavg, fedprox",
        ),
        ({"devices": {"sampling": "importance"}, "merge": {"rule": "median"}}, r"`merge.rule` must be 'mean' with"),
        ({"devices": {"sampling": "importance"}, "attack": {"share": 0.2}}, r"`attack.share` must be 0 with"),
        ({"devices": {"sampling": "loss"}, "privacy": {"clip": 1.0}}, r"`devices.sampling` must be 'uniform' with"),
        (
            {"devices": {"sampling": "oort"}, "systems": {"model": "clock", "server": "buffered"}},
            r"systems.server|devices.sampling",
        ),
    ],
)
def test_what_a_rule_cannot_go_with_is_refused(given, sentence):
    with pytest.raises(FedProxError, match=sentence):
        fedprox.train({"rounds": 1, **given})


def test_a_choice_does_not_cost_more_with_a_million_devices():
    sizes = np.full(1_000_000, 3)
    known = {k: KnownDevice(1, 1.0, 2.0) for k in range(50)}
    view = view_of(sizes, 10, 5, known, losses=lambda devices: dict.fromkeys(devices.tolist(), 1.0))
    for rule in (PowerOfChoice(), ByLoss(), Oort(), Importance()):
        assert len(rule(view)) in range(1, 11)
