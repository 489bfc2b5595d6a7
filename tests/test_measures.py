import math

import jax
import numpy as np
import pytest

import reference_fedprox as reference
from conftest import population_of
from fedprox import theory
from fedprox.core.threads import Workers
from fedprox.data import synthetic
from fedprox.data.idx import read_idx
from fedprox.measures import Measurer, dissimilarity
from fedprox.measures.measured_sample import draw_measured
from fedprox.models import Model, linear_regression, softmax_regression
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from shared_data import real


def measurer_of(population, model=None, **options):
    model = model or softmax_regression(population.shape[0], population.classes)
    return Measurer(population, LoadedSamples.of(population.train, model), model, Workers(1), **options)


def some_params(population, seed=0):
    random = np.random.default_rng(seed)
    return {
        "bias": random.normal(size=population.classes).astype(np.float32),
        "weight": random.normal(size=(population.classes, population.shape[0])).astype(np.float32),
    }


@pytest.mark.parametrize("sizes", [[5], [7, 23, 4, 31, 12], [1] * 300, [600, 3, 3]])
def test_measures_equal_numpy(sizes):
    population = population_of(sizes, test=2)
    params = some_params(population)
    measured = measurer_of(population).measure(params)
    devices = [population.train.of(k) for k in range(population.devices)]
    weight, bias = params["weight"].astype(float), params["bias"].astype(float)
    loss, variance, b = reference.measures(weight, bias, devices)
    assert measured.train_loss == pytest.approx(loss, rel=1e-5)
    assert measured.gradient_variance == pytest.approx(variance, rel=1e-4, abs=1e-6)
    assert measured.dissimilarity == pytest.approx(b, rel=1e-5)
    for part, accuracy in ((population.train, measured.train_accuracy), (population.test, measured.test_accuracy)):
        assert accuracy == (np.argmax(part.x @ weight.T + bias, axis=1) == part.y).mean()


def test_per_device_records(small_population):
    params = some_params(small_population)
    records = measurer_of(small_population).per_device(params)
    for k, record in enumerate(records):
        x, y = small_population.train.of(k)
        losses, _, _ = reference.losses_and_gradient(params["weight"], params["bias"], x, y)
        assert record["device"] == k
        assert record["train_samples"] == len(y)
        assert record["train_loss"] == pytest.approx(losses.mean(), rel=1e-5)
        x, y = small_population.test.of(k)
        expected = (np.argmax(x @ params["weight"].T + params["bias"], axis=1) == y).mean()
        assert record["test_accuracy"] == pytest.approx(expected)


def test_devices_without_test_data_are_normal():
    population = Population.from_arrays(np.eye(4), [0, 1, 0, 1], [0, 0, 1, 1], test=[0, 1, 0, 0])
    records = measurer_of(population).per_device(some_params(population))
    assert [record["test_samples"] for record in records] == [1, 0]
    assert records[1]["test_loss"] is None
    assert records[1]["test_accuracy"] is None


def test_a_fixed_sample_of_devices_is_measured(small_population):
    measurer = measurer_of(small_population, sample=3, seed=1)
    sizes = np.diff(small_population.train.offsets)
    sample = draw_measured(sizes, 3, seed=1)
    assert measurer.devices.tolist() == sample.devices.tolist()
    params = some_params(small_population)
    weight, bias = params["weight"].astype(float), params["bias"].astype(float)
    masses = sample.weight * sizes[sample.devices]
    masses /= masses.sum()
    losses, gradients = [], []
    for k in sample.devices:
        values, by_weight, by_bias = reference.losses_and_gradient(weight, bias, *small_population.train.of(int(k)))
        losses.append(values.mean())
        gradients.append(np.concatenate([by_weight.ravel(), by_bias]))
    mean = masses @ gradients
    measured = measurer.measure(params)
    assert measured.train_loss == pytest.approx(masses @ losses, rel=1e-5)
    variance = masses @ [((gradient - mean) ** 2).sum() for gradient in gradients]
    assert measured.gradient_variance == pytest.approx(variance, rel=1e-4)
    assert [record["device"] for record in measurer.per_device(params)] == sorted(sample.devices.tolist())


def test_without_gradients_nothing_is_said_of_dissimilarity(small_population):
    measured = measurer_of(small_population, gradients=False).measure(some_params(small_population))
    assert (measured.gradient_variance, measured.dissimilarity) == (None, None)
    with_them = measurer_of(small_population).measure(some_params(small_population))
    assert measured.train_loss == with_them.train_loss


def test_identical_devices_are_not_dissimilar():
    x, y = np.random.default_rng(0).normal(size=(6, 3)), [0, 1, 2, 0, 1, 2]
    population = Population.from_arrays(np.tile(x, (4, 1)), y * 4, np.repeat(range(4), 6), test=np.zeros(24))
    measured = measurer_of(population).measure(some_params(population))
    assert measured.dissimilarity == pytest.approx(1.0, abs=1e-6)
    assert measured.gradient_variance == pytest.approx(0.0, abs=1e-6)


def test_dissimilarity_and_its_exceptions():
    assert dissimilarity(9.0, 1.0) == 3.0
    assert dissimilarity(2.0, 2.0) == 1.0
    assert dissimilarity(0.0, 0.0) == 1.0
    assert dissimilarity(1.0, 0.0) == math.inf


def test_a_regression_has_no_accuracy():
    population = Population.from_arrays(np.ones((6, 1)), np.arange(6.0), [0, 0, 0, 1, 1, 1], test=[0, 0, 1, 0, 0, 1])
    model = Model("mean", lambda key: np.zeros(1, np.float32), lambda w, x, y: (x @ w - y) ** 2 / 2, None)
    measured = measurer_of(population, model).measure(np.zeros(1, np.float32))
    assert measured.train_loss == pytest.approx(np.mean([0, 1, 9, 16]) / 2)
    assert (measured.train_accuracy, measured.test_accuracy) == (None, None)
    # gradients of the devices: -(0 + 1)/2 and -(3 + 4)/2; mean -2, so E||g||^2 = (0.25 + 12.25)/2
    assert measured.gradient_variance == pytest.approx(6.25 - 4)
    assert jax.numpy.isclose(measured.dissimilarity, math.sqrt(6.25 / 4))


def digits():
    """Digits of MNIST's test set on 20 devices, each of which has one or two of them."""
    images = read_idx(real("mnist/t10k-images-idx3-ubyte.gz"), 3)[:2000]
    labels = read_idx(real("mnist/t10k-labels-idx1-ubyte.gz"), 1)[:2000]
    order = np.argsort(labels, kind="stable")
    x = images.reshape(2000, -1)[order].astype(np.float32) / 255
    return Population.from_arrays(x, labels[order].astype(int), np.arange(2000) // 100)


@pytest.mark.parametrize("population", [lambda: synthetic(1.0, 1.0), digits])
def test_b_is_what_bounded_variance_allows(population):
    """Corollary 10: B^2 <= 1 + variance / epsilon wherever ||grad f||^2 >= epsilon, with equality at its own norm."""
    population = population()
    measurer, seen = measurer_of(population), []
    for size in (0.0, 0.1, 0.3):
        params = {name: np.float32(size) * leaf for name, leaf in some_params(population).items()}
        measured = measurer.measure(params)
        weight, bias = params["weight"].astype(float), params["bias"].astype(float)
        _, *gradient = reference.losses_and_gradient(weight, bias, population.train.x, population.train.y)
        norm2 = float(sum(np.sum(part**2) for part in gradient))  # over all samples at once, since p_k = n_k / n
        bound = theory.dissimilarity_bound(sigma2=measured.gradient_variance, epsilon=norm2)
        assert measured.dissimilarity == pytest.approx(bound, rel=1e-4)
        assert measured.dissimilarity > 1.05  # the devices differ
        seen.append((measured.dissimilarity, measured.gradient_variance, norm2))
    b, variances, norms2 = zip(*seen, strict=True)
    assert max(b) <= theory.dissimilarity_bound(sigma2=max(variances), epsilon=min(norms2)) * (1 + 1e-4)


def test_gradients_beyond_all_bounds_are_no_warning_whoever_adds_them():
    devices, samples, features = 64, 600, 60
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(devices * samples, features))).astype(np.float32)
    owner = np.repeat(np.arange(devices), samples)
    y = np.where(owner // 8 % 2, 3e38, -3e38).astype(np.float32)  # +inf in one group of devices, -inf in the next
    population = Population.from_arrays(x, y, owner, test=np.zeros(len(y), bool))
    model, workers = linear_regression(features), Workers(2)
    measurer = Measurer(population, LoadedSamples.of(population.train, model), model, workers)
    try:
        for _ in range(10):
            assert measurer.measure(model.init(jax.random.key(0))).train_loss == math.inf
    finally:
        workers.close()
