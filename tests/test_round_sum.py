"""The sum over a round's list, of which some are not heard of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.core.trees import TreeSum
from fedprox.methods.merging import RoundSum


def tree_sum(values):
    total = TreeSum(len(values))
    for position, value in enumerate(values):
        total.add(position, value)
    return total.result()


@given(st.integers(1, 40), st.integers(0, 4), st.data())
def test_the_bits_are_those_of_the_tree_with_zeros_for_whoever_is_not_heard_of(count, level, data):
    values = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    width = 1 << level
    chunks = data.draw(st.permutations(range(-(-count // width))))
    heard = chunks[: data.draw(st.integers(1, len(chunks)))]
    total = RoundSum(count, level)
    for index in heard:
        total.add(index, {"w": tree_sum(list(values[index * width : (index + 1) * width]))})
    known = np.isin(np.arange(count) // width, heard)
    expected = tree_sum([value if here else np.zeros_like(value) for value, here in zip(values, known, strict=True)])
    assert total.result()["w"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("level", [0, 2])
def test_nobody_gives_nothing(level):
    assert RoundSum(5, level).result() is None
    assert RoundSum(0, level).result() is None


@pytest.mark.parametrize("empty", [None, (), {}])
def test_values_without_numbers_are_given_back_as_they_are(empty):
    total = RoundSum(3)
    for index in (2, 0):
        total.add(index, empty)
    assert total.result() == empty


def test_a_missing_chunk_may_be_the_last_and_incomplete_one():
    total = RoundSum(5, level=1)  # chunks 0, 1 and half of 2
    total.add(1, np.float32(7))
    assert total.result() == 7


def test_a_position_counts_once():
    total = RoundSum(2)
    total.add(0, np.float32(1))
    with pytest.raises(KeyError):
        total.add(0, np.float32(1))
    with pytest.raises(KeyError):
        total.add(2, np.float32(1))
