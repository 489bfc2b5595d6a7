import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.core.errors import ConfigError
from fedprox.participation.sampling import Cohort, check_sampling, draw_cohort, draw_without_replacement, merge_weights


def offsets_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes)])


@given(st.integers(1, 200), st.data())
def test_drawing_without_replacement_gives_different_numbers_in_range(total, data):
    count = data.draw(st.integers(0, total))
    words = np.array(data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count)), np.uint64)
    drawn = draw_without_replacement(total, words)
    assert len(set(drawn.tolist())) == count
    assert all(0 <= number < total for number in drawn.tolist())


@pytest.mark.parametrize(("total", "count"), [(200, 200), (250, 201), (2000, 1000), (10**12, 300)])
def test_many_draws_without_replacement_are_those_of_one_after_another(total, count):
    words = np.random.default_rng(count).integers(0, 2**64, count, dtype=np.uint64)
    chosen: list[int] = []
    for last, word in zip(range(total - count, total), words.tolist(), strict=True):
        candidate = word % (last + 1)
        chosen.append(last if candidate in chosen else candidate)
    assert draw_without_replacement(total, words).tolist() == chosen


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 20), st.integers(0, 1000))
def test_proportional_draws_add_up_and_list_each_device_once(sizes, per_round, seed):
    cohort = draw_cohort("proportional", per_round, offsets_of(sizes), seed=seed, round=1)
    assert cohort.draws.sum() == per_round
    assert len(set(cohort.devices.tolist())) == len(cohort)
    assert cohort.samples.tolist() == [sizes[k] for k in cohort.devices]


def test_every_subset_is_equally_likely():
    counts = {}
    for round in range(6000):
        drawn = draw_cohort("uniform", 2, offsets_of([1] * 5), seed=0, round=round).devices
        key = tuple(sorted(drawn.tolist()))
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 10
    expected = 600
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi2 < 27.9  # 99.9% quantile, 9 degrees of freedom


def test_proportional_frequencies_follow_the_masses():
    sizes = np.array([1, 2, 3, 10, 4])
    counts = np.zeros(5)
    for round in range(2000):
        cohort = draw_cohort("proportional", 5, offsets_of(sizes), seed=1, round=round)
        counts[cohort.devices] += cohort.draws
    expected = 10000 * sizes / sizes.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 99.9% quantile, 4 degrees of freedom


def test_a_round_of_ten_million_devices_costs_no_more_than_one_of_a_hundred(monkeypatch):
    # counted, not timed: K words, and bisection that touches log2(N) offsets for each draw
    import fedprox.participation.sampling as module

    asked = []
    real = module.words  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "words", lambda count, *rest: asked.append(count) or real(count, *rest))
    for devices in (100, 10_000_000):
        offsets = np.arange(devices + 1)
        for scheme in ("uniform", "proportional"):
            assert len(draw_cohort(scheme, 10, offsets, seed=0, round=1)) <= 10
    assert asked == [10, 10, 10, 10]


def test_weights():
    cohort = Cohort(np.array([4, 2, 9]), np.array([10, 30, 60]), np.array([1, 3, 1]))
    everybody, nobody = np.ones(3, bool), np.zeros(3, bool)
    two = np.array([True, True, False])
    assert merge_weights(cohort, everybody, by_draws=False).tolist() == [0.1, 0.3, 0.6]
    assert merge_weights(cohort, two, by_draws=False).tolist() == [0.25, 0.75, 0]
    assert merge_weights(cohort, everybody, by_draws=True).tolist() == [0.2, 0.6, 0.2]
    assert merge_weights(cohort, two, by_draws=True).tolist() == [0.25, 0.75, 0]
    assert merge_weights(cohort, nobody, by_draws=False).tolist() == [0, 0, 0]


def test_more_devices_than_there_are():
    with pytest.raises(ConfigError, match=r"`devices.per_round` must be an integer from 1 to 3, .*; got 4"):
        check_sampling("uniform", 4, 3)
    with pytest.raises(ConfigError, match=r"must be 1 for a single device .*; got 4: name the device of each sample"):
        check_sampling("uniform", 4, 1)
    check_sampling("uniform", 3, 3)
    check_sampling("proportional", 4, 3)
