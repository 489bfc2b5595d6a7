import itertools
from functools import partial

import jax
import numpy as np
import pytest

import fedprox
import reference_fedprox as reference
from fedprox import models
from fedprox.core.errors import ConfigError
from fedprox.data import synthetic
from fedprox.models import mean_gradient, products
from fedprox.population import Population, Samples
from fedprox.population.loaded_samples import LoadedSamples


def batch(shape, classes, rows=6, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, *shape)).astype(np.float32), random.integers(0, classes, rows).astype(np.int32)


@pytest.mark.parametrize(("features", "classes"), [(4, 3), (60, 10), (200, 10), (1, 2)])
def test_softmax_regression_brings_the_gradient_of_its_own_loss(features, classes):
    model = models.softmax_regression(features, classes)
    x, y = batch((features,), classes)
    random = np.random.default_rng(1)
    params = {
        "bias": random.normal(size=classes).astype(np.float32),
        "weight": random.normal(size=(classes, features)).astype(np.float32),
    }
    weights = np.array([0.5, 0.0, 0.1, 0.2, 0.1, 0.1], np.float32)

    @jax.jit
    def both(params):
        automatic = jax.grad(lambda params: (weights * model.loss(params, x, y)).sum())(params)
        return automatic, mean_gradient(model, params, x, y, weights)

    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), *both(params))


def test_softmax_regression_equals_numpy_and_starts_from_zeros():
    model = models.softmax_regression(5, 3)
    x, y = batch((5,), 3)
    zeros = model.init(jax.random.key(0))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(zeros))
    weight, bias = np.arange(15.0).reshape(3, 5) / 10, np.array([0.3, -0.2, 0.1])
    losses, _, _ = reference.losses_and_gradient(weight, bias, x, y)
    params = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
    ours, predicted = jax.jit(lambda params: (model.loss(params, x, y), model.predict(params, x)))(params)
    np.testing.assert_allclose(ours, losses, rtol=1e-5)
    np.testing.assert_array_equal(predicted, (x @ weight.T + bias).argmax(axis=1))


def test_large_scores_do_not_overflow():
    model = models.softmax_regression(1, 2)
    params = {"weight": np.array([[1e4], [-1e4]], np.float32), "bias": np.zeros(2, np.float32)}
    x, y = np.array([[1.0]], np.float32), np.array([1])
    assert jax.jit(model.loss)(params, x, y)[0] == pytest.approx(2e4)
    gradient = jax.jit(partial(mean_gradient, model))(params, x, y, np.ones(1, np.float32))
    assert np.isfinite(gradient["weight"]).all()


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (7,)), ("mlp", (3, 2)), ("cnn", (8, 8)), ("cnn", (64,)), ("cnn", (9, 8, 3))]
)
def test_networks_learn_to_tell_examples_apart(name, shape):
    model = models.build(name, shape, 3)
    x, y = batch(shape, 3)
    params = model.init(jax.random.key(0))
    assert jax.eval_shape(model.loss, params, x, y).shape == (6,)

    @jax.jit
    def step(params):
        loss, gradient = jax.value_and_grad(lambda params: model.loss(params, x, y).mean())(params)
        moved = jax.tree.map(lambda w, g: w - 0.05 * g, params, gradient)
        return moved, loss, model.predict(params, x)

    params, first, _ = step(params)
    for _ in range(59):
        params, _, _ = step(params)
    _, last, labels = step(params)
    assert last < first / 2
    assert (labels == y).mean() > 0.8


def test_an_mlp_by_hand():
    model = models.mlp(features=1, classes=2, hidden=2)
    params = {
        "hidden": {"weight": np.array([[1.0, -1.0]], "f"), "bias": np.array([0.0, 0.5], "f")},
        "output": {"weight": np.array([[1.0, 0.0], [0.0, 2.0]], "f"), "bias": np.array([0.0, 1.0], "f")},
    }
    # x = 2: hidden relu(2, -1.5) = (2, 0), scores (2, 1)
    losses = jax.jit(model.loss)(params, np.array([[2.0]], "f"), np.array([1]))
    assert losses[0] == pytest.approx(np.log(1 + np.e), rel=1e-5)


def test_a_cnn_needs_images():
    for shape in ((7,), (3, 3), (2, 2, 2, 2)):
        with pytest.raises(ConfigError, match="'cnn' must be used with images"):
            models.build("cnn", shape, 3)


ROWS, FEATURES = (1, 7, 8, 10, 16, 33), (23, 24, 64, 65, 100, 300)


@pytest.mark.parametrize("within_one_kernel", [False, True])
def test_which_products_are_taken_a_vector_at_a_time(within_one_kernel, monkeypatch):
    monkeypatch.setattr(products, "is_within_one_kernel", lambda: within_one_kernel)
    for features, rows, (classes, columns) in itertools.product(FEATURES, ROWS, ((2, 16), (10, 23), (30, 32))):
        weight, x = np.zeros((classes, features), "f"), np.zeros((rows, features), "f")
        is_long = within_one_kernel and features > (columns if 1 < rows < 24 else 64)
        assert ("scan" in str(jax.make_jaxpr(partial(products.scores, weight))(x))) == is_long, (features, rows)


@pytest.mark.parametrize(  # on both sides of each limit, with and without a remainder after whole vectors
    ("features", "rows", "classes"),
    [
        (23, 8, 10), (23, 33, 1), (24, 10, 1), (24, 16, 10), (24, 7, 2), (64, 16, 2), (64, 33, 10), (65, 8, 1),
        (65, 33, 2), (100, 1, 10), (100, 10, 2), (300, 1, 2), (300, 7, 10), (300, 10, 1), (300, 33, 10),
    ],
)  # fmt: skip
def test_products_with_many_features_are_those_of_numpy(features, rows, classes, monkeypatch):
    random = np.random.default_rng(0)
    weight, x = random.normal(size=(classes, features)).astype("f"), random.normal(size=(rows, features)).astype("f")
    residuals = random.normal(size=(classes, rows)).astype("f")
    monkeypatch.setattr(products, "is_within_one_kernel", lambda: True)

    @jax.jit
    def found(weight, residuals, x):
        outer = products.outer_products(residuals, weight, x)
        return products.scores(weight, x), outer, products.exponentials(residuals)

    scores, sums, exponentials = found(weight, residuals, x)
    np.testing.assert_allclose(scores, weight @ x.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums, residuals @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(exponentials, np.exp(residuals), rtol=1e-5)


@pytest.mark.parametrize("within_one_kernel", [False, True])
@pytest.mark.parametrize("rows", [4, 10, 40])
def test_products_take_matrices_with_columns_of_zeros(rows, within_one_kernel, monkeypatch):
    monkeypatch.setattr(products, "is_within_one_kernel", lambda: within_one_kernel)
    random = np.random.default_rng(0)
    weight, x = random.normal(size=(10, 100)).astype("f"), random.normal(size=(rows, 100)).astype("f")
    residuals = random.normal(size=(10, rows)).astype("f")
    wide_weight, wide_x = (np.pad(each, ((0, 0), (0, 12))) for each in (weight, x))
    for one, other in ((weight, wide_x), (wide_weight, x), (wide_weight, wide_x)):
        np.testing.assert_allclose(products.scores(one, other), weight @ x.T, rtol=1e-4, atol=1e-4)
        outer = np.asarray(products.outer_products(residuals, one, other))
        assert outer.shape == one.shape
        np.testing.assert_allclose(outer[:, :100], residuals @ x, rtol=1e-4, atol=1e-4)
        assert not outer[:, 100:].any()


def test_rows_are_loaded_with_whole_cache_lines_where_that_helps(monkeypatch):
    x = np.arange(300, dtype="f").reshape(3, 10, 10)
    samples = Samples(x, np.zeros(3, int), np.array([0, 3]))
    loaded = LoadedSamples.of(samples, models.softmax_regression(100, 3))
    assert loaded.x.shape == (64, 112)
    np.testing.assert_array_equal(loaded.x[:3, :100], x.reshape(3, 100))
    assert not loaded.x[:, 100:].any()
    assert LoadedSamples.of(samples, models.mlp(100, 3)).x.shape == (64, 10, 10)
    monkeypatch.setattr("fedprox.population.loaded_samples._COPIED", 1000)
    assert LoadedSamples.of(samples, models.softmax_regression(100, 3)).x.shape == (3, 10, 10)


@pytest.mark.parametrize("batch_size", [4, 10, 200])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rows_that_are_not_copied_give_the_same_models(momentum, batch_size, monkeypatch):
    """Wide rows and others: the weights are wide in SGD without momentum, as they are in SGD with it."""
    random = np.random.default_rng(1)
    x, y, owner = random.normal(size=(60, 70)).astype("f"), random.integers(0, 3, 60), np.arange(60) % 4
    population = Population.from_arrays(x, y, owner, test=np.arange(60) < 4)
    config = {
        "rounds": 2,
        "devices": {"per_round": 3},
        "solver": {"epochs": 2, "batch_size": batch_size, "momentum": momentum},
    }
    expected = fedprox.train(config, population=population)
    monkeypatch.setattr("fedprox.population.loaded_samples._COPIED", 0)
    found = fedprox.train(config, population=population)
    assert found.params["weight"].shape == (3, 70)
    np.testing.assert_allclose(found.params["weight"], expected.params["weight"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.history[-1]["train_loss"], expected.history[-1]["train_loss"], rtol=1e-5)


@pytest.mark.parametrize(
    ("solver", "batch_size"),
    [
        *((solver, size) for solver in ("sgd", "svrg") for size in (0, 1, 10)),
        ("adam", 10),  # the loop of sgd with another step, which sees no data
        *((solver, 10) for solver in ("gradient_descent", "lbfgs", "newton_cg")),  # which take no mini-batches
    ],
)
def test_features_that_are_all_zero_change_nothing(solver, batch_size):
    """With more than 128 features other products are compiled, and whole loops of them into one kernel."""
    narrow = synthetic(1.0, 1.0, devices=6, seed=2)
    config = {
        "rounds": 3,
        "devices": {"per_round": 3},
        "solver": {"name": solver, "batch_size": batch_size, "epochs": 2, "learning_rate": 0.01},
        "measure": {"gamma": True},
    }

    def padded(samples):
        return Samples(np.pad(samples.x, ((0, 0), (0, 140))), samples.y, samples.offsets)

    wide = Population(padded(narrow.train), padded(narrow.test), narrow.classes)
    found, expected = (fedprox.train(config, population=each).history for each in (wide, narrow))
    for key in ("train_loss", "dissimilarity"):
        np.testing.assert_allclose([row[key] for row in found], [row[key] for row in expected], rtol=2e-4)
