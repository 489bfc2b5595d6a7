"""The ready-made networks beside PyTorch's layers with the same weights: scores, losses and gradients."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedprox import Population, models, train
from fedprox.core.compilation import compiled
from fedprox.core.errors import ConfigError, DataError
from fedprox.core.trees import flatten_names
from fedprox.models.group_norm import group_norm_relu
from fedprox.models.model import classifier, evaluate_and_differentiate
from reference_networks import SCORES, functional, torch


def tensors(params):
    """Return the parameters as leaves of PyTorch, by name."""
    return {name: torch.tensor(np.asarray(leaf), requires_grad=True) for name, leaf in flatten_names(params).items()}


def perturbed(params, seed=1):
    """Return parameters none of which is a plain zero or one, so that a mistake in any of them shows."""
    random = np.random.default_rng(seed)
    # by NumPy, which compiles nothing for the many shapes
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) + 0.05 * random.normal(size=leaf.shape).astype(np.float32), params
    )


# LeNet has other code for 16 examples and more, and mcmahan_cnn, on an odd side, shares the code for fewer with it.
# 21 examples are a whole vector of 16 and a part of one.
CASES = {
    "lenet": ((32, 32, 3), 4),
    "lenet in vectors of examples": ((32, 32, 3), 64),
    "lenet on odd sides in vectors of examples": ((19, 17, 2), 21),
    "mcmahan_cnn": ((10, 9, 2), 4),
    "resnet8": ((12, 12, 3), 4),
    "resnet20": ((9, 8, 3), 4),
    "char_transformer": ((12,), 4),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_and_gradients_are_those_of_pytorch(case):
    shape, rows = CASES[case]
    name, classes = case.split()[0], 7
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, *shape)).astype(np.float32)
    if name == "char_transformer":
        x = random.integers(0, classes, (rows, *shape)).astype(np.int32)
    y = random.integers(0, classes, rows).astype(np.int32)
    weights = random.dirichlet(np.ones(rows)).astype(np.float32)
    model = models.build(name, shape, classes)
    params = perturbed(model.init(jax.random.key(0)))
    w = tensors(params)
    z = SCORES[name](w, torch.tensor(x))
    losses = functional.cross_entropy(z, torch.tensor(y).long(), reduction="none")
    (torch.tensor(weights) * losses).sum().backward()
    ours, labels, gradient = compiled(
        lambda params: (
            model.loss(params, x, y),
            model.predict(params, x),
            models.mean_gradient(model, params, x, y, weights),
        )
    )(params)
    np.testing.assert_allclose(ours, losses.detach().numpy(), rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(labels, z.argmax(1).numpy())
    gradient = flatten_names(gradient)
    assert sorted(gradient) == sorted(w)
    for leaf, value in gradient.items():
        expected = w[leaf].grad.numpy()
        np.testing.assert_allclose(
            value, expected, rtol=2e-3, atol=2e-5 * max(1.0, float(np.abs(expected).max())), err_msg=leaf
        )


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("lenet", (60,), r"'lenet' must be used with images of at least 16 x 16 pixels.*got examples of \(60,\)"),
        ("lenet", (15, 28, 3), r"at least 16 x 16 pixels.*got examples of \(15, 28, 3\)"),
        ("mcmahan_cnn", (3, 3), "at least 4 x 4 pixels"),
        ("resnet8", (7, 8, 3), "'resnet8' must be used with images of at least 8 x 8 pixels"),
        ("resnet20", (2, 8, 8, 3), "'resnet20' must be used with images"),
        ("char_transformer", (8, 8), r"'char_transformer' must be used with sequences of numbers; got examples of"),
    ],
)
def test_examples_of_a_wrong_shape(name, shape, sentence):
    with pytest.raises(ConfigError, match=sentence):
        models.build(name, shape, 10)


def test_the_transformer_refuses_what_are_no_character_codes():
    model = models.char_transformer(5, 4, width=8, layers=1, heads=2)
    params = model.init(jax.random.key(0))
    with pytest.raises(DataError, match="integers, one per character; got float32"):
        model.predict(params, np.zeros((2, 4), np.float32))
    with pytest.raises(DataError, match=r"sequences of 4 character codes; got examples of shape \(5,\)"):
        model.predict(params, np.zeros((2, 5), np.int32))
    assert np.isnan(jax.jit(model.loss)(params, np.full((1, 4), 9), np.zeros(1, int))).all()


@pytest.mark.parametrize(("shape", "groups"), [((3, 4, 6, 4), 2), ((2, 3, 5, 16), 8), ((1, 1, 1, 72), 8)])
@pytest.mark.parametrize("is_added", [True, False])
def test_group_normalisation_has_the_derivatives_of_its_formula(shape, groups, is_added):
    random = np.random.default_rng(0)
    channels = shape[-1]
    x, change, added = (random.normal(size=shape) for _ in range(3))
    arguments = [x + 3, random.normal(size=channels), random.normal(size=channels), *([added] if is_added else [])]
    arguments = [each.astype(np.float32) for each in arguments]

    def fast(x, scale, shift, added=None):
        return group_norm_relu({"scale": scale, "shift": shift}, x, groups, added)

    def plain(x, scale, shift, added=0.0):
        parts = x.reshape(shape[0], -1, groups, channels // groups)
        deviation = parts - parts.mean(axis=(1, 3), keepdims=True)
        normal = deviation / jnp.sqrt(jnp.square(deviation).mean(axis=(1, 3), keepdims=True) + 1e-5)
        return jax.nn.relu(normal.reshape(shape) * scale + shift + added)

    def with_derivatives(function):
        def both(change, *arguments):
            out, derivatives = jax.vjp(function, *arguments)
            return out, *derivatives(change)

        return jax.jit(both)(change.astype(np.float32), *arguments)

    found, expected = map(with_derivatives, (fast, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_curvature_of_a_network_with_group_normalisation_is_that_of_differences():
    def scores(params, x):
        for name in ("first", "second"):
            x = lax.conv(x.transpose(0, 3, 1, 2), params[name]["weight"], (1, 1), "SAME").transpose(0, 2, 3, 1)
            x = group_norm_relu(params[name], x, groups=2)
        return x.mean(axis=(1, 2)) @ params["output"]["weight"]

    random = np.random.default_rng(0)

    def draw(*shape):
        return random.normal(size=shape).astype(np.float32)

    params = {
        "first": {"weight": draw(4, 2, 3, 3), "scale": draw(4), "shift": draw(4)},
        "second": {"weight": draw(4, 4, 3, 3), "scale": draw(4), "shift": draw(4)},
        "output": {"weight": draw(4, 3)},
    }
    model = classifier("two layers", lambda key: params, scores)
    x, y = draw(4, 5, 5, 2), np.array([0, 1, 2, 1], np.int32)
    along = jax.tree.map(lambda leaf: draw(*leaf.shape), params)

    def gradient(at):
        return models.mean_gradient(model, at, x, y, np.full(4, 0.25, np.float32))

    product = jax.jit(lambda at: jax.jvp(gradient, (at,), (along,))[1])(params)
    ahead, behind = (
        jax.jit(gradient)(jax.tree.map(lambda w, d, s=sign: w + np.float32(s * 1e-3) * d, params, along))
        for sign in (1, -1)
    )
    for layer in ("output", "first"):
        ours, forward, backward = (np.asarray(each[layer]["weight"]) for each in (product, ahead, behind))
        np.testing.assert_allclose(ours, (forward - backward) / 2e-3, rtol=0.1, atol=0.05 * np.abs(ours).max())


@pytest.mark.parametrize("weights", [np.ones(12), np.arange(12) / 10])
def test_one_pass_gives_what_loss_prediction_and_gradient_give(weights):
    model = models.cnn((12, 12), 3)
    params = model.init(jax.random.key(0))
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 144)).astype(np.float32), random.integers(0, 3, 12)
    weights = weights.astype(np.float32)
    in_one_pass = jax.jit(partial(evaluate_and_differentiate, model))
    losses, labels, gradient = in_one_pass(params, x, y, weights)
    plain = dataclasses.replace(model, losses_and_labels=None)

    @jax.jit
    def apart(params):
        own_gradient = evaluate_and_differentiate(plain, params, x, y, weights)[2]
        return model.loss(params, x, y), model.predict(params, x), own_gradient

    expected_losses, expected_labels, expected_gradient = apart(params)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_array_equal(labels, expected_labels)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), gradient, expected_gradient)


def test_vectors_of_examples_give_the_same_bits_for_any_number_of_workers():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(100, 16, 16)).astype(np.float32), np.arange(100) % 3
    population = Population.from_arrays(x, y, np.arange(100) // 40)
    config = {
        "rounds": 1,
        "model": {"name": "lenet"},
        "solver": {"batch_size": 16, "epochs": 1},
        "devices": {"per_round": 3},
    }
    one, two = (train({**config, "engine": {"workers": count}}, population=population) for count in (1, 2))
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    assert one.history[-1]["train_loss"] == two.history[-1]["train_loss"]
