import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.core.trees import (
    TreeSum,
    flatten_names,
    inner_product,
    scale,
    squared_distance,
    squared_norm,
    unflatten_names,
)


def pairwise(values):
    """The sum along the binary tree over positions, written recursively."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return pairwise(values[:half]) + pairwise(values[half:])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.randoms())
def test_the_sum_has_the_same_bits_in_whatever_order_the_leaves_arrive(values, random):
    leaves = np.array(values, np.float32)
    positions = list(range(len(leaves)))
    random.shuffle(positions)
    total = TreeSum(len(leaves))
    for position in positions:
        total.add(position, {"w": leaves[position : position + 1]})
    assert total.result()["w"].tobytes() == np.array([pairwise(list(leaves))]).tobytes()


@given(st.integers(1, 40), st.data())
def test_whole_subtrees_may_be_added_by_somebody_else(count, data):
    leaves = np.random.default_rng(count).normal(size=count).astype(np.float32)
    level = data.draw(st.integers(0, 3))
    width = 1 << level
    total = TreeSum(count)
    for index in range(-(-count // width)):
        part = leaves[index * width : (index + 1) * width]
        own = TreeSum(len(part))
        for position, leaf in enumerate(part):
            own.add(position, leaf)
        total.add(index, own.result(), level=level)
    assert total.result() == pairwise(list(leaves))


def test_a_sum_that_is_not_complete_says_so():
    total = TreeSum(3)
    total.add(0, np.float32(1))
    with pytest.raises(ValueError, match="the sum of 3 leaves is not complete"):
        total.result()


def test_names_of_leaves_and_back():
    tree = {"layer": [{"w": np.ones((2, 1))}, {"w": np.zeros(3)}], "b": np.array(5.0)}
    named = flatten_names(tree)
    assert list(named) == ["b", "layer.0.w", "layer.1.w"]
    back = unflatten_names(named, like=tree)
    assert back["layer"][1]["w"].shape == (3,)
    with pytest.raises(ValueError, match=r"'layer.1.w' is missing"):
        unflatten_names({name: named[name] for name in ("b", "layer.0.w")}, like=tree)
    with pytest.raises(ValueError, match="'more' is not part of the model"):
        unflatten_names({**named, "more": named["b"]}, like=tree)
    with pytest.raises(ValueError, match=r"'b' must have shape \(\); got \(2,\)"):
        unflatten_names({**named, "b": np.zeros(2)}, like=tree)


def test_arithmetic():
    tree = {"a": np.array([3.0], np.float32), "b": np.array([[4.0]], np.float32)}
    assert squared_norm(tree) == 25
    assert scale(tree, 0.5)["a"].dtype == np.float32


@pytest.mark.parametrize("size", [0, 1, 2**15 - 1, 2**15, 2**15 + 1, 3 * 2**15 + 5])
def test_a_distance_in_parts_is_that_of_the_whole(size):
    random = np.random.default_rng(size)
    first, second = (dict[str, Any](a=random.normal(size=(size, 2)), b=[random.normal(size=3)]) for _ in range(2))
    exact = math.fsum(((first["a"] - second["a"]) ** 2).ravel()) + math.fsum((first["b"][0] - second["b"][0]) ** 2)
    assert squared_distance(first, second) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("size", [10_000, 10_001, 50_000])
def test_norms_and_products_use_one_core_and_have_its_bits(size, monkeypatch):
    longest, vdot = [0], np.vdot

    def product(one, other):
        longest.append(one.size)
        return vdot(one, other)

    monkeypatch.setattr(np, "vdot", product)
    leaf = np.random.default_rng(size).normal(size=(2, size // 2)).astype(np.float32)
    norm2, product2 = squared_norm([leaf]), inner_product([leaf], [leaf])
    assert max(longest) <= 10_000  # OpenBLAS divides more among the cores, and rounds differently for it
    assert norm2 == pytest.approx(math.fsum(leaf.astype(float).ravel() ** 2), rel=1e-12)
    assert product2 == pytest.approx(norm2, rel=1e-12)


def test_a_distance_is_summed_in_double_precision_also_along_a_large_leaf():
    ones = np.ones(2**25 + 1, np.float32)  # in single precision the sum would stay at 2**24
    assert squared_distance({"a": ones}, {"a": np.zeros_like(ones)}) == 2**25 + 1
    assert squared_distance([np.float32(1e30)], [np.float32(-1e30)]) == pytest.approx(4e60)


def test_a_distance_needs_trees_of_one_shape():
    with pytest.raises(ValueError, match="zip"):
        squared_distance([np.ones(2**15 + 1)], [np.ones(2**15)])
    with pytest.raises(ValueError, match="zip"):
        squared_distance([np.ones(1)], [np.ones(1), np.ones(1)])
