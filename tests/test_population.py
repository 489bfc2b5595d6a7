import json

import numpy as np
import pytest

from conftest import population_of
from fedprox.core.errors import DataError
from fedprox.core.randomness import Purpose, generator
from fedprox.data import read_leaf, read_npz, synthetic, synthetic_iid
from fedprox.population import Population, split


def test_rows_are_grouped_by_device_in_the_order_given():
    population = Population.from_arrays(
        x=[[1.0], [2.0], [3.0], [4.0]], y=[0, 1, 2, 1], device=["b", "a", "b", "a"], test=[0, 0, 0, 1]
    )
    assert population.devices == 2
    assert [population.name(k) for k in range(2)] == ["a", "b"]
    assert population.train.of(1)[0].tolist() == [[1.0], [3.0]]
    assert population.test.of(0)[1].tolist() == [1]
    assert population.test.size(1) == 0
    assert population.masses.tolist() == [1 / 3, 2 / 3]
    assert population.classes == 3


def test_a_fifth_of_each_device_is_test_data_and_the_split_is_drawn():
    population = population_of([50, 10, 4, 1])
    sizes = np.array([50, 10, 4, 1])
    whole = Population.from_arrays(population.train.x, population.train.y, np.repeat(np.arange(4), sizes))
    assert np.diff(whole.test.offsets).tolist() == [10, 2, 0, 0]
    assert np.diff(whole.train.offsets).tolist() == [40, 8, 4, 1]
    offsets = np.array([0, 50])
    assert not np.array_equal(split(offsets, 0), split(offsets, 1))
    assert np.array_equal(split(offsets, 0), split(offsets, 0))


@pytest.mark.parametrize(
    ("x", "y", "device", "sentence"),
    [
        ([[1.0], [np.nan]], [0, 1], [0, 0], "x must be finite numbers in single precision; device 0, row 1"),
        ([[1.0], [2.0]], [0.5, np.inf], [0, 0], "y must be finite numbers in single precision; device 0, row 1"),
        ([[1.0]], [0, 1], [0, 0], "must have the same number of rows"),
        ([], [], [], "at least one"),
        ([["a"]], [0], [0], "x must be real numbers"),
    ],
)
def test_bad_arrays_are_refused(x, y, device, sentence):
    with pytest.raises(DataError, match=sentence):
        Population.from_arrays(np.array(x), np.array(y), np.array(device), test=np.zeros(len(y)))


def test_a_device_without_training_data_is_refused():
    with pytest.raises(DataError, match="device lonely must have training samples"):
        Population.from_arrays([[1.0], [1.0]], [0, 0], ["lonely", "x"], test=[True, False])


def test_synthetic_follows_its_definition():
    population = synthetic(1.0, 1.0, devices=400, seed=5)
    sizes = np.diff(population.train.offsets) + np.diff(population.test.offsets)
    assert sizes.min() >= 50
    logs = np.log(sizes - 50 + 0.5)[sizes > 55]
    assert 3.5 < np.median(np.log(np.maximum(sizes - 50, 1))) < 4.5  # lognormal(4, 2)
    assert logs.std() > 1.2
    assert population.shape == (60,)
    means = np.array([population.train.of(k)[0].mean(axis=0) for k in range(400)])  # v_k, nearly
    within = means.var(axis=1).mean()  # entries of v_k around B_k
    between = means.mean(axis=1).var()  # B_k ~ N(0, 1)
    assert within == pytest.approx(1.0, abs=0.1)
    assert between == pytest.approx(1.0, abs=0.25)
    big = int(np.argmax(sizes))
    spread = population.train.of(big)[0].std(axis=0)
    np.testing.assert_allclose(spread, np.arange(1, 61) ** -0.6, rtol=0.15)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_beta_is_the_deviation_of_the_devices_inputs(alpha, beta):
    population = synthetic(alpha, beta, devices=300, seed=1)
    means = np.array([population.train.of(k)[0].mean() for k in range(300)])
    assert means.std() == pytest.approx(np.hypot(beta, 1 / np.sqrt(60)), abs=0.1)


def test_a_mean_that_all_entries_of_the_model_share_cancels_in_the_labels():
    # u_k adds u_k (1 + sum x) to every class's score: see the module's remark on alpha
    first, second = synthetic(0.0, 0.5, devices=5, seed=2), synthetic(1.0, 0.5, devices=5, seed=2)
    np.testing.assert_array_equal(first.train.offsets, second.train.offsets)
    np.testing.assert_array_equal(first.train.x, second.train.x)
    assert (first.train.y == second.train.y).mean() > 0.999


def test_devices_do_not_depend_on_how_many_there_are():
    few, many = synthetic(1.0, 1.0, devices=3, seed=4), synthetic(1.0, 1.0, devices=6, seed=4)
    for k in range(3):
        np.testing.assert_array_equal(few.train.of(k)[0], many.train.of(k)[0])
        np.testing.assert_array_equal(few.test.of(k)[1], many.test.of(k)[1])


def test_synthetic_iid_devices_share_one_distribution():
    population = synthetic_iid(devices=100, seed=3)
    means = np.array([population.train.of(k)[0].mean(axis=0) for k in range(100)])
    sizes = np.diff(population.train.offsets)
    deviations = means * np.sqrt(sizes)[:, None] / np.arange(1, 61) ** -0.6
    assert deviations.std() == pytest.approx(1.0, abs=0.05)  # only sampling noise
    shares = np.array([np.bincount(population.train.of(k)[1], minlength=10) / sizes[k] for k in range(100)])
    pooled = np.bincount(population.train.y, minlength=10) / sizes.sum()
    chi2 = (sizes[:, None] * (shares - pooled) ** 2 / np.maximum(pooled, 1e-9))[:, pooled > 0.02].sum()
    assert chi2 < 1.3 * 99 * (pooled > 0.02).sum()


def test_labels_are_those_of_the_largest_score():
    population = synthetic_iid(devices=20, seed=0)
    shared = generator(0, Purpose.SYNTHETIC_SHARED)
    weight, bias = shared.normal(0, 1, (10, 60)), shared.normal(0, 1, 10)
    assert weight.mean() == pytest.approx(0, abs=0.15)
    assert (np.argmax(population.train.x @ weight.T + bias, axis=1) == population.train.y).mean() > 0.999


def test_npz(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.eye(4), y=[0, 1, 0, 1], device=[1, 1, 2, 2], test=[0, 1, 0, 0])
    population = read_npz(tmp_path / "d.npz")
    assert (population.devices, len(population.train), len(population.test)) == (2, 3, 1)
    np.savez(tmp_path / "no-y.npz", x=np.eye(4), device=[1, 1, 2, 2])
    with pytest.raises(DataError, match="y is missing"):
        read_npz(tmp_path / "no-y.npz")
    np.savez(tmp_path / "evil.npz", x=np.array([{}], object), y=[0], device=[0])
    with pytest.raises(DataError, match=r"evil\.npz: x must be numbers or text; it has Python objects"):
        read_npz(tmp_path / "evil.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "d.npz").read_bytes()[:200])
    with pytest.raises(DataError, match=r"cut\.npz is not a readable npz"):
        read_npz(tmp_path / "cut.npz")
    with pytest.raises(DataError, match="does not exist"):
        read_npz(tmp_path / "nothing.npz")


def test_leaf(write_leaf):
    folder = write_leaf({"b": ([[1, 2], [3, 4]], [0, 1]), "a": ([[5, 6]], [2])}, {"b": ([[7, 8]], [1])})
    population = read_leaf(folder)
    assert [population.name(k) for k in range(2)] == ["a", "b"]
    assert population.train.of(1)[0].tolist() == [[1, 2], [3, 4]]
    assert population.test.size(0) == 0
    assert population.test.of(1)[0].tolist() == [[7, 8]]


def broken_leaf(folder, change):
    file = folder / "train" / "data.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c["user_data"].pop("b"), "user 'b' must have `x` and `y`"),
        (lambda c: c["user_data"]["b"].pop("y"), "user 'b' must have `x` and `y`"),
        (lambda c: c["user_data"]["b"]["y"].pop(), "user 'b' must have lists x and y of one length; got 2 and 1"),
        (lambda c: c["user_data"]["b"]["x"][1].pop(), "user 'b' must have examples that are numbers, all of one shape"),
        (lambda c: c["user_data"]["b"]["x"][1].__setitem__(0, "?"), "user 'b' must have examples that are numbers"),
        (lambda c: c["user_data"]["b"]["x"][1].__setitem__(0, float("nan")), r"user 'b' has a value .* \(row 1\)"),
        (lambda c: c["user_data"]["b"]["y"].__setitem__(1, -3), "user 'b' must have labels .* row 1 has -3"),
        (lambda c: c["user_data"]["b"]["y"].__setitem__(1, 0.5), "user 'b' must have labels .* row 1 has 0.5"),
        (lambda c: c["num_samples"].__setitem__(0, 7), "user 'b' has 2 samples, but `num_samples` says 7"),
        (lambda c: c["num_samples"].append(7), "`num_samples` has 3 entries for 2 users"),
        (lambda c: c.pop("users"), "must be a LEAF object with `users` and `user_data`"),
        (lambda c: c["user_data"]["a"].__setitem__("x", [[1, 2, 3]]), "one shape"),
    ],
)
def test_a_broken_leaf_file_is_refused_naming_user_and_fault(write_leaf, change, sentence):
    folder = write_leaf({"b": ([[1, 2], [3, 4]], [0, 1]), "a": ([[5, 6]], [2])}, {"b": ([[7, 8]], [1])})
    broken_leaf(folder, change)
    with pytest.raises(DataError, match=sentence):
        read_leaf(folder)


def test_leaf_files_that_cannot_be_read(write_leaf, tmp_path):
    with pytest.raises(DataError, match="must hold LEAF files"):
        read_leaf(tmp_path)
    folder = write_leaf({"a": ([[5, 6]], [2])}, {"z": ([[7, 8]], [1])})
    with pytest.warns(UserWarning, match="no training data and are left out, the first is 'z'"):
        assert read_leaf(folder).devices == 1
    (folder / "train" / "data.json").write_text('{"users": [')
    with pytest.raises(DataError, match=r"data.json is not valid JSON: .* at line 1"):
        read_leaf(folder)
    (folder / "train" / "data.json").write_bytes(b'{"users": ["\xff"], "num_samples": [1], "user_data": {}}')
    with pytest.raises(DataError, match=r"data.json is not UTF-8 text \(byte 12\)"):
        read_leaf(folder)


def test_a_label_that_is_too_large_is_refused_as_it_was_given():
    with pytest.raises(DataError, match="at most 1048575; device 1, row 0 has 8589934592"):
        Population.from_arrays([[1.0]] * 3, [0, 0, 2**33], [0, 0, 1], test=[False] * 3)
