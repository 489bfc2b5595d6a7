import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.core.errors import ConfigError, DataError
from fedprox.population import partition

Y = np.repeat(np.arange(10), 100)


def test_iid_deals_equally_and_at_random():
    device = partition.iid(1000, 7)
    assert np.ptp(np.bincount(device)) <= 1
    counts = np.array([np.bincount(Y[device == k], minlength=10) for k in range(7)])
    assert abs(counts - 1000 / 70).max() < 12
    assert (partition.iid(1000, 7, seed=1) != device).any()
    np.testing.assert_array_equal(partition.iid(1000, 7), device)


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=20), st.integers(20, 500))
def test_sizes_are_met_and_add_up(sizes, rows):
    counts = np.bincount(partition.by_sizes(rows, sizes), minlength=len(sizes))
    assert counts.sum() == rows
    assert counts.min() >= 1
    free = rows - len(sizes)
    np.testing.assert_allclose(counts - 1, free * np.array(sizes) / np.sum(sizes), atol=1.001)


def test_power_law_sizes_have_the_exponent():
    sizes = partition.power_law_sizes(100_000, exponent=3.0)
    assert sizes.min() >= 1
    assert abs((sizes > 10).mean() - 10**-2.0) < 1e-3  # P(S > s) = s^(1 - exponent)


def test_lognormal_sizes():
    logs = np.log(partition.lognormal_sizes(100_000, 4.0, 2.0))
    assert abs(logs.mean() - 4) < 0.03
    assert abs(logs.std() - 2) < 0.02


def _distinct(device, devices):
    return np.mean([len(np.unique(Y[device == k])) for k in range(devices)])


def test_dirichlet_goes_from_one_label_to_all():
    assert _distinct(partition.by_dirichlet(Y, 10, alpha=0.01), 10) < 3
    alike = partition.by_dirichlet(Y, 10, alpha=1e6)
    np.testing.assert_allclose([np.bincount(Y[alike == k]) for k in range(10)], 10, atol=1)


def test_dirichlet_leaves_no_device_empty():
    device = partition.by_dirichlet(np.zeros(50, int), 50, alpha=0.01)
    assert sorted(device) == list(range(50))


@pytest.mark.parametrize(("devices", "classes"), [(10, 2), (4, 3), (200, 5), (1, 10), (3, 10)])
def test_classes_per_device(devices, classes):
    device = partition.by_classes(Y, devices, classes)
    assert {len(np.unique(Y[device == k])) for k in range(devices)} == {classes}


def test_classes_follow_sizes():
    device = partition.by_classes(Y, 20, 1, sizes=np.r_[np.full(10, 1.0), np.full(10, 3.0)])
    counts = np.bincount(device)
    np.testing.assert_allclose(counts[:10], 25, atol=1)
    np.testing.assert_allclose(counts[10:], 75, atol=1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: partition.iid(3, 4), ConfigError, "`devices` must be an integer from 1 to 3"),
        (lambda: partition.by_sizes(5, [1.0, -1.0]), ConfigError, "`sizes` must be numbers > 0"),
        (lambda: partition.by_dirichlet(Y, 3, alpha=0), ConfigError, "`alpha` must be a finite number > 0; got 0"),
        (lambda: partition.by_dirichlet(Y, 3, np.inf), ConfigError, "`alpha` must be a finite number > 0; got inf"),
        (lambda: partition.iid(3, 2, seed=-1), ConfigError, "`seed` must be an integer >= 0, below 2.63; got -1"),
        (lambda: partition.power_law_sizes(3, seed=1.5), ConfigError, "`seed` must be an integer >= 0.* got 1.5"),
        (lambda: partition.by_classes(Y, 3, 11), ConfigError, "`classes` must be .* from 1 to 10"),
        (lambda: partition.by_classes(Y, 3, 2), ConfigError, "at least 10, the number of labels; got 6"),
        (lambda: partition.by_classes([0, 1], 9, 1), DataError, "label 0 must have"),
        (lambda: partition.by_dirichlet([0.5], 1, 1.0), DataError, "y must be labels"),
        (lambda: partition.power_law_sizes(3, 1.0), ConfigError, "`exponent` must be a number > 1"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
