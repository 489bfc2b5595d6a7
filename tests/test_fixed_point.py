"""Sums of replies in fixed point: the same bits in every order and for every division into parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.core.fixed_point import FixedPointSum


def replies_of(count, seed=0, size=(3, 5)):
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(count))
    return [
        ({"w": random.normal(size=size).astype(np.float32), "b": random.normal(size=2).astype(np.float32)}, weight)
        for weight in weights.tolist()
    ]


def total_of(replies):
    total = FixedPointSum(like=replies[0][0])
    for reply, weight in replies:
        total.add(reply, weight)
    return total


def bits(tree):
    return [leaf.tobytes() for leaf in tree.values()]


@given(st.integers(1, 30), st.randoms(), st.data())
def test_the_sum_has_the_same_bits_in_every_order_and_for_every_division_into_parts(count, random, data):
    replies = replies_of(count, seed=count)
    expected = bits(total_of(replies).result())
    random.shuffle(replies)
    assert bits(total_of(replies).result()) == expected
    cut = data.draw(st.integers(0, count))
    parts = FixedPointSum(like=replies[0][0])
    for part in (replies[:cut], replies[cut:]):
        if part:
            parts.merge(total_of(part))
    assert bits(parts.result()) == expected


def test_it_is_the_weighted_sum_but_for_rounding():
    replies = replies_of(500, size=(200, 300))  # more entries than a block
    found = total_of(replies).result()
    for name, leaf in found.items():
        exact = sum(weight * reply[name].astype(np.float64) for reply, weight in replies)
        assert leaf.dtype == np.float32
        np.testing.assert_array_less(np.abs(leaf - exact), 500 * 2.0**-43 + np.abs(exact) * 2.0**-24)


def test_a_case_worked_by_hand():
    total = FixedPointSum(like=np.zeros(2))
    total.add(np.array([2.0**-42, 1.0]), 0.5)  # half of the smallest step is rounded to an even number of steps: 0
    total.add(np.array([2.0**-42 * 3, -3.0]), 0.5)  # three halves are rounded to 2
    assert total.result().tolist() == [2.0**-41, -1.0]


def test_the_largest_replies_do_not_overflow():
    largest = np.full(3, np.nextafter(2.0**20, 0))
    total = FixedPointSum(like=largest)
    for _ in range(1000):
        total.add(largest, 1e-3)
    np.testing.assert_allclose(total.result(), largest, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20, -(2.0**20)])
def test_a_bad_reply_is_refused_and_changes_nothing(bad):
    total = FixedPointSum(like={"a": np.zeros(2), "b": np.zeros(2)})
    total.add({"a": np.ones(2), "b": np.ones(2)}, 0.5)
    with pytest.raises(ValueError, match="must lie between -1048576 and 1048576"):
        total.add({"a": np.ones(2), "b": np.array([0.0, bad])}, 0.25)
    assert total.result()["a"].tolist() == [0.5, 0.5]
    assert total.weight == 0.5


@pytest.mark.parametrize("reply", [{"a": np.ones(3)}, {"b": np.ones(2)}, {"a": np.ones((2, 1))}, {}])
def test_a_reply_of_another_shape_is_refused(reply):
    with pytest.raises(ValueError, match="must have the names and shapes of the model"):
        FixedPointSum(like={"a": np.zeros(2)}).add(reply, 1.0)


@pytest.mark.parametrize("weights", [(-0.1,), (0.6, 0.5), (float("nan"),), (1.1,)])
def test_weights_that_could_overflow_are_refused(weights):
    total = FixedPointSum(like=np.zeros(1))
    for weight in weights[:-1]:
        total.add(np.ones(1), weight)
    with pytest.raises(ValueError, match="sum to at most 1"):
        total.add(np.ones(1), weights[-1])
