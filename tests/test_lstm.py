"""The LSTM core and the two models of text, against hand calculation, NumPy, plain autodiff and PyTorch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedprox
from fedprox import models
from fedprox.core.errors import ConfigError, DataError
from fedprox.models import char_lstm, mean_gradient, sentiment_lstm
from fedprox.models.lstm import init_layer, last_hidden
from fedprox.population import Population

# time, batch, features, units: a single step; several of each; units whose gates are widened by columns of zeros. The
# sizes of the paper's text models are compared with PyTorch.
SIZES = [(1, 1, 3, 2), (7, 4, 8, 12), (5, 1, 6, 128)]


def plain_last_hidden(layers, inputs):
    for layer in layers:

        def step(state, x, layer=layer):
            hidden, cell = state
            i, f, g, o = jnp.split(x @ layer["input"] + hidden @ layer["hidden"] + layer["bias"], 4, axis=1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zero = jnp.zeros((inputs.shape[1], len(layer["hidden"])))
        _, inputs = lax.scan(step, (zero, zero), inputs)
    return inputs[-1]


def numpy_losses(params, inputs, y):
    """Losses of examples whose inputs are (batch, time, features), in double precision, one at a time."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    params = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
    losses = []
    for sequence, label in zip(np.asarray(inputs, float), y, strict=True):
        inner = sequence
        for layer in (params["layer1"], params["layer2"]):
            hidden = cell = np.zeros(len(layer["hidden"]))
            outputs = []
            for x in inner:
                z = layer["input"].T @ x + layer["hidden"].T @ hidden + layer["bias"]
                i, f, g, o = z.reshape(4, -1)
                cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
                hidden = sigmoid(o) * np.tanh(cell)
                outputs.append(hidden)
            inner = outputs
        scores = params["output"]["weight"].T @ hidden + params["output"]["bias"]
        losses.append(np.log(np.exp(scores).sum()) - scores[label])
    return np.array(losses)


def assert_trees_close(actual, expected, tolerance=1e-5):
    def check(a, b):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max() + 1e-9

    jax.tree.map(check, actual, expected)


def example(time, batch, features, hidden):
    random = np.random.default_rng(time + hidden)

    def draw(*shape):
        return (random.uniform(-1, 1, shape) / math.sqrt(hidden)).astype(np.float32)

    layers = [
        {"bias": draw(4 * hidden), "hidden": draw(hidden, 4 * hidden), "input": draw(rows, 4 * hidden)}
        for rows in (features, hidden)
    ]
    inputs = jnp.asarray(random.normal(size=(time, batch, features)), jnp.float32)
    return layers, inputs, jnp.asarray(random.normal(size=(batch, hidden)), jnp.float32)


def char_batch(model, classes, length, rows=6, seed=0):
    random = np.random.default_rng(seed)
    x = random.integers(0, classes, (rows, length)).astype(np.uint8)
    return model.init(jax.random.key(seed)), x, random.integers(0, classes, rows).astype(np.int32)


def test_one_unit_and_one_step_by_hand():
    layer = {
        "input": jnp.array([[0.1, 0.2, 0.3, 0.4]]),
        "hidden": jnp.array([[9.0, 9.0, 9.0, 9.0]]),
        "bias": jnp.array([0.5, 0.6, 0.7, 0.8]),
    }
    i, g, o = 1 / (1 + math.exp(-0.7)), math.tanh(1.3), 1 / (1 + math.exp(-1.6))  # x = 2; the states before are zero
    hidden = last_hidden([layer], jnp.full((1, 1, 1), 2.0))
    assert float(hidden[0, 0]) == pytest.approx(o * math.tanh(i * g), rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_gradient_equals_automatic_differentiation_of_a_plain_scan(size):
    layers, inputs, slope = example(*size)

    def objective(of):
        return jax.jit(jax.value_and_grad(lambda layers, inputs: jnp.vdot(of(layers, inputs), slope), argnums=(0, 1)))

    value, gradient = objective(last_hidden)(layers, inputs)
    plain_value, plain_gradient = objective(plain_last_hidden)(layers, inputs)
    assert float(value) == pytest.approx(float(plain_value), rel=1e-5)
    assert_trees_close(gradient, plain_gradient)
    alone = jax.jit(last_hidden)(layers, inputs)  # without what a gradient needs
    assert float(jnp.vdot(alone, slope)) == pytest.approx(float(plain_value), rel=1e-5)


def test_products_with_the_hessian_equal_those_of_a_plain_scan():
    layers, inputs, slope = example(5, 2, 3, 4)

    def product(of):
        def gradient(layers):
            return jax.grad(lambda layers: jnp.vdot(of(layers, inputs), slope))(layers)

        return jax.jit(lambda: jax.jvp(gradient, (layers,), (layers,))[1])()

    assert_trees_close(product(last_hidden), product(plain_last_hidden))


def test_char_lstm_loss_equals_numpy():
    model = char_lstm(classes=11, length=9, embedding=3, hidden=5)
    params, x, y = char_batch(model, 11, 9)
    expected = numpy_losses(params, np.asarray(params["embedding"])[x], y)
    np.testing.assert_allclose(jax.jit(model.loss)(params, x, y), expected, rtol=1e-5)


def test_sentiment_lstm_loss_equals_numpy_and_its_vectors_are_no_parameters():
    vectors = np.random.default_rng(3).normal(size=(20, 6))
    model = sentiment_lstm(vectors, hidden=4)
    params = model.init(jax.random.key(0))
    x, y = np.random.default_rng(4).integers(0, 20, (3, 7)).astype(np.int32), np.array([0, 1, 1], np.int32)
    np.testing.assert_allclose(jax.jit(model.loss)(params, x, y), numpy_losses(params, vectors[x], y), rtol=1e-5)
    assert sorted(params) == ["layer1", "layer2", "output"]
    assert (20, 6) not in [leaf.shape for leaf in jax.tree.leaves(params)]


def test_rows_of_weight_zero_add_nothing_to_the_gradient():
    model = char_lstm(classes=7, length=6, embedding=2, hidden=4)
    params, x, y = char_batch(model, 7, 6)
    weights = np.array([0.5, 0.0, 0.25, 0.0, 0.25, 0.0], np.float32)
    gradient = jax.jit(mean_gradient, static_argnums=0)
    other = np.where(weights[:, None] > 0, x, 6 - x).astype(x.dtype)  # other texts in the rows without a weight
    assert (other != x).any(axis=1).sum() == 3
    assert_trees_close(
        gradient(model, params, x, y, weights), gradient(model, params, other, np.where(weights > 0, y, 0), weights)
    )
    nothing = gradient(model, params, x, y, np.zeros(6, np.float32))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(nothing))


@pytest.mark.parametrize("size", [(80, 10, 8, 100), (25, 10, 50, 256)])
def test_values_and_gradients_equal_those_of_torch(size):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    layers, inputs, slope = example(*size)
    theirs = torch.nn.LSTM(size[2], size[3], num_layers=2)
    names = {"weight_ih": "input", "weight_hh": "hidden", "bias_ih": "bias"}
    with torch.no_grad():
        for k, layer in enumerate(layers):
            getattr(theirs, f"bias_hh_l{k}").zero_()
            for name, ours in names.items():
                getattr(theirs, f"{name}_l{k}").copy_(torch.from_numpy(layer[ours].T.copy()))
    hidden = theirs(torch.from_numpy(np.array(inputs)))[0][-1]
    hidden.backward(torch.from_numpy(np.array(slope)))

    @jax.jit
    def value_and_gradient(layers):
        value, pull_back = jax.vjp(lambda layers: last_hidden(layers, inputs), layers)
        return value, pull_back(slope)[0]

    value, gradient = value_and_gradient(layers)
    assert_trees_close(value, hidden.detach().numpy())
    expected = [
        {ours: getattr(theirs, f"{name}_l{k}").grad.numpy().T for name, ours in names.items()} for k in range(2)
    ]
    assert_trees_close(gradient, expected)


def test_layers_start_within_glorots_limit_and_remember():
    layer = init_layer(jax.random.key(0), 60, 100)
    limit = math.sqrt(6 / (160 + 400))
    weights = np.concatenate([layer["input"].ravel(), layer["hidden"].ravel()])
    assert np.abs(weights).max() <= limit
    assert weights.std() == pytest.approx(limit / math.sqrt(3), rel=0.02)  # of a uniform distribution
    assert abs(weights.mean()) < 4 * limit / math.sqrt(3 * weights.size)
    np.testing.assert_array_equal(layer["bias"], np.repeat([0.0, 1.0, 0.0, 0.0], 100))


def text_population(length=8):
    """Three devices that repeat a sentence each; x are codes, y the next one."""
    rows = []
    for device, text in enumerate(["to be or not to be ", "all the world is a stage ", "what is in a name "]):
        codes = np.frombuffer((text * 3).encode(), np.uint8) % 32
        rows += [(codes[k : k + length], codes[k + length], device) for k in range(len(codes) - length)]
    x, y, device = (np.array(column) for column in zip(*rows, strict=True))
    return Population.from_arrays(x, y, device)


def settings(rounds, learning_rate, **sections):
    return {
        "rounds": rounds,
        "devices": {"per_round": 3},
        "solver": {"epochs": 5, "learning_rate": learning_rate},
        "measure": {"dissimilarity": False},
        **sections,
    }


def test_training_on_a_text_lowers_the_loss():
    population = text_population()
    result = fedprox.train(settings(3, 0.8, model={"name": "char_lstm"}), population=population)
    losses = [row["train_loss"] for row in result.history]
    assert losses[0] == pytest.approx(math.log(population.classes), abs=0.1)  # it knows nothing at the start
    assert losses[-1] < 0.9 * losses[0]
    assert result.params["embedding"].shape == (population.classes, 8)


def test_training_on_word_numbers_lowers_the_loss():
    random = np.random.default_rng(0)
    x = random.integers(0, 12, (90, 5)).astype(np.int32)
    population = Population.from_arrays(x, (x < 6).sum(axis=1) > 2, np.arange(90) % 3)
    model = models.build("sentiment_lstm", (5,), 2, vectors=random.normal(size=(12, 10)))
    result = fedprox.train(settings(3, 0.3), population=population, model=model)
    assert result.history[-1]["train_loss"] < 0.9 * result.history[0]["train_loss"]


def test_what_is_no_sequence_of_numbers_is_refused():
    model = char_lstm(classes=5, length=4, hidden=3)
    params = model.init(jax.random.key(0))
    with pytest.raises(DataError, match=r"x must be integers, one per character or word; got float32"):
        model.loss(params, jnp.zeros((2, 4)), jnp.zeros(2, int))
    with pytest.raises(DataError, match=r"sequences of 4 character codes; got examples of shape \(5,\)"):
        model.predict(params, jnp.zeros((2, 5), int))
    with pytest.raises(DataError, match=r"word vectors must be an array \(words, dimensions\); got shape \(3,\)"):
        sentiment_lstm([1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match=r"'sentiment_lstm' must be used with data that has word vectors; got none"):
        models.build("sentiment_lstm", (25,), 2)
    for name in ("char_lstm", "sentiment_lstm"):
        with pytest.raises(ConfigError, match=rf"'{name}' must be used with sequences of numbers; got examples of"):
            models.build(name, (28, 28), 10)


@pytest.mark.parametrize("code", [5, -1])
def test_a_code_outside_the_table_makes_the_loss_nan(code):
    model = char_lstm(classes=5, length=4, hidden=3)
    x = jnp.array([[0, 1, 2, 3], [0, code, 2, 3]])
    losses = jax.jit(model.loss)(model.init(jax.random.key(0)), x, jnp.array([0, 0]))
    assert np.isfinite(losses[0])
    assert np.isnan(losses[1])
