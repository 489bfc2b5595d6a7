"""Convolutions and pooling of any program are brought into the forms that XLA runs fast within loops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedprox.config import SolverConfig
from fedprox.core.convolutions import onednn
from fedprox.core.fast_forms import in_fast_forms
from fedprox.core.operation_count import count_operations
from fedprox.measures.pass_program import Places, walk_program
from fedprox.models import Model, cnn, mlp
from fedprox.solvers import build, minibatch_program
from fedprox.solvers.subproblem import Subproblem

FAST = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))  # examples, space, channels; space, inputs, outputs


def operations(jaxpr):
    """Yield the operations of a program, also those within others."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for each in value if isinstance(value, tuple) else (value,):
                if hasattr(each, "eqns") or hasattr(each, "jaxpr"):
                    yield from operations(getattr(each, "jaxpr", each))


def is_fast(function, *arguments):
    """Return whether a function has convolutions, and all are in the fast form; so with derivatives of pooling."""
    found = list(operations(jax.jit(function).trace(*arguments).jaxpr.jaxpr))
    names = {each.primitive.name for each in found}
    numbers = [each.params["dimension_numbers"] for each in found if each.primitive.name == "conv_general_dilated"]
    is_known = bool(numbers) or "ffi_call" in names
    return is_known and all(tuple(each) == FAST for each in numbers) and "select_and_scatter_add" not in names


@pytest.fixture(params=[True, False], ids=["onednn", "xla"])
def library(request, monkeypatch):
    """Let convolutions be computed by oneDNN, where there is one, or by XLA's own kernels."""
    if not request.param:
        monkeypatch.setattr(onednn, "is_available", lambda: False)
    return request.param


@pytest.fixture
def by_xla(monkeypatch):
    monkeypatch.setattr(onednn, "is_available", lambda: False)


def both(function: Any, *arguments: Any) -> tuple[Any, Any]:
    """Return what a function gives in fast forms, and as it is."""
    return jax.jit(in_fast_forms(function))(*arguments), jax.jit(function)(*arguments)


def image(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def squares(x, weights, **options):
    return (lax.conv_general_dilated(x, weights, **options) ** 2).sum()


NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


@pytest.mark.parametrize(
    ("x", "weights", "options"),
    [
        (image(2, 6, 5, 4), image(3, 3, 4, 6, seed=1), {"padding": "SAME", "dimension_numbers": NHWC}),
        (image(2, 4, 6, 5), image(6, 4, 3, 3, seed=1), {"padding": "VALID", "dimension_numbers": NCHW}),
        (image(2, 7, 6, 4), image(3, 2, 4, 6, seed=1), {"window_strides": (2, 3), "dimension_numbers": NHWC}),
        (image(2, 9, 8, 4), image(3, 3, 4, 6, seed=1), {"rhs_dilation": (2, 1), "dimension_numbers": NHWC}),
        (image(20, 12, 12, 1), image(5, 5, 1, 20, seed=1), {"dimension_numbers": NHWC}),  # summed in parts
        (image(2, 6, 6, 4), image(3, 3, 2, 6, seed=1), {"feature_group_count": 2, "dimension_numbers": NHWC}),
    ],
)
def test_a_convolution_and_its_derivatives_are_the_same(x, weights, options, library):
    options = {"window_strides": (1, 1), "padding": "SAME", **options}

    def derivatives(x, weights):
        return jax.grad(lambda x, weights: squares(x, weights, **options), argnums=(0, 1))(x, weights)

    assert not is_fast(derivatives, x, weights)
    assert is_fast(in_fast_forms(derivatives), x, weights)
    for ours, plain in zip(*both(derivatives, x, weights), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("size", "window", "channels", "options"),
    [
        ((3, 32, 32), (3, 3), (16, 16), {}),
        ((4, 28, 14), (5, 3), (6, 16), {"padding": "VALID"}),
        ((2, 12, 13), (3, 3), (3, 8), {"padding": ((0, 2), (2, 1))}),
        ((2, 12, 12), (3, 3), (5, 16), {"padding": ((2, 1), (0, 2))}),
        ((2, 11, 12), (3, 2), (5, 16), {"padding": ((2, 3), (1, 1))}),
        ((2, 12, 12), (3, 3), (8, 32), {"padding": ((2, -1), (-2, 1))}),
        ((2, 9, 9), (5, 5), (8, 128), {}),
        ((2, 16, 16), (3, 3), (8, 32), {"window_strides": (2, 2)}),
        ((2, 15, 23), (3, 5), (8, 16), {"window_strides": (2, 3), "padding": ((1, 0), (2, 1))}),
        ((2, 13, 17), (2, 2), (8, 32), {"window_strides": (2, 3), "padding": "VALID"}),  # pixels that no window sees
        ((3, 7, 7), (1, 1), (9, 48), {}),
        ((2, 14, 14), (1, 1), (9, 48), {"window_strides": (2, 2), "padding": "VALID"}),
        ((1, 8, 8), (3, 3), (8, 144), {}),
        ((2, 19, 13), (4, 3), (64, 128), {"padding": "VALID"}),  # so many sums that XLA divides arrays of them
    ],
)
def test_derivatives_by_the_weights_are_sums_of_outer_products(size, window, channels, options):
    examples, *sides = size
    x, weights = image(examples, *sides, channels[0]), image(*window, *channels, seed=1)
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC} | options
    gradient = jax.grad(squares, argnums=1)

    def loss(x, weights):
        return gradient(x, weights, **options)

    found, expected = both(loss, x, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    names = [each.primitive.name for each in operations(jax.make_jaxpr(in_fast_forms(loss))(x, weights).jaxpr)]
    assert names.count("conv_general_dilated") + names.count("ffi_call") == 1  # the convolution itself


@pytest.mark.parametrize(
    ("size", "window", "channels", "options"),
    [
        ((2, 12, 12), (3, 3), (1, 16), {}),  # grey images
        ((2, 12, 12), (3, 3), (4, 6), {}),
        ((2, 7, 7), (1, 1), (9, 8), {}),  # few outputs, whose neighbours are not taken with them
        ((2, 4, 4), (3, 3), (8, 16), {}),  # small images
        ((2, 12, 12), (3, 3), (4, 16), {"padding": ((3, 2), (2, 4))}),  # windows beyond the image
        ((2, 12, 12), (3, 3), (4, 16), {"rhs_dilation": (2, 2)}),
        ((1, 6, 6), (3, 3), (384, 384), {}),
    ],
)
def test_other_derivatives_by_the_weights_are_not(size, window, channels, options):
    examples, *sides = size
    x, weights = image(examples, *sides, channels[0]), image(*window, *channels, seed=1)
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC} | options

    def loss(x, weights):
        return jax.grad(squares, argnums=1)(x, weights, **options)

    names = [each.primitive.name for each in operations(jax.make_jaxpr(in_fast_forms(loss))(x, weights).jaxpr)]
    assert names.count("conv_general_dilated") + names.count("ffi_call") == 2


def test_images_may_be_part_of_the_program():
    x, weights = image(3, 16, 16, 8), image(3, 3, 8, 16, seed=1)
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC}

    def step(_, weights):
        return weights - 1e-4 * jax.jit(jax.grad(lambda weights: squares(x, weights, **options)))(weights)

    np.testing.assert_allclose(*both(lambda weights: lax.fori_loop(0, 3, step, weights), weights), atol=1e-4)


@pytest.mark.usefixtures("by_xla")
@pytest.mark.parametrize(
    ("size", "window", "channels", "padding", "computed"),
    [
        ((9, 7), (3, 3), (3, 6), "SAME", (2, 3, 4, 36)),  # tiles of 3 x 2 pixels, the last beyond the image
        ((8, 8), (5, 5), (3, 16), "VALID", (2, 4, 2, 32)),
        ((6, 5), (3, 3), (3, 20), "SAME", (2, 6, 5, 32)),  # one pixel, with outputs added
        ((6, 5), (3, 3), (9, 20), "SAME", (2, 6, 5, 20)),  # as it is
        ((6, 5), (5, 5), (32, 16), "SAME", (1, 6, 10, 16)),  # both examples side by side
    ],
)
def test_few_outputs_are_computed_for_many_pixels_at_once(size, window, channels, padding, computed):
    options = {"window_strides": (1, 1), "padding": padding, "dimension_numbers": NHWC}
    x, weights = image(2, *size, channels[0]), image(*window, *channels, seed=1)

    def plain(x, weights):
        return lax.conv_general_dilated(x, weights, **options)

    found = list(operations(jax.make_jaxpr(in_fast_forms(plain))(x, weights).jaxpr))
    [convolution] = [each for each in found if each.primitive.name == "conv_general_dilated"]
    assert convolution.outvars[0].aval.shape == computed
    np.testing.assert_allclose(*both(plain, x, weights), rtol=1e-4, atol=1e-4)


HCWN = ("HCWN", "HWIO", "HCWN")


@pytest.mark.parametrize(
    ("size", "window", "channels", "padding"),
    [
        ((8, 9), (5, 5), (3, 6), "VALID"),
        ((6, 5), (3, 2), (1, 9), "SAME"),
        ((4, 4), (3, 3), (2, 3), ((3, 2), (2, 4))),  # more zeros than the window is wide
        ((7, 6), (1, 1), (2, 3), "VALID"),
    ],
)
def test_images_with_the_examples_last_are_convolved_by_products(size, window, channels, padding):
    options = {"window_strides": (1, 1), "padding": padding, "dimension_numbers": HCWN}
    x, weights = image(size[0], channels[0], size[1], 17), image(*window, *channels, seed=1)

    def program(x, weights):
        out = lax.conv_general_dilated(x, weights, **options)
        return out, *jax.grad(lambda x, weights: squares(x, weights, **options), argnums=(0, 1))(x, weights)

    names = {each.primitive.name for each in operations(jax.make_jaxpr(in_fast_forms(program))(x, weights).jaxpr)}
    assert "conv_general_dilated" not in names
    assert "dot_general" in names
    for ours, plain in zip(*both(program, x, weights), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4 * float(np.abs(plain).max()))


def test_a_few_examples_last_or_moves_by_two_pixels_are_brought_into_the_library_s_order():
    few, many, weights = image(8, 3, 8, 15), image(8, 3, 8, 16), image(3, 3, 3, 6, seed=1)
    for x, stride in ((few, 1), (many, 2)):

        def gradient(x, weights, stride=stride):
            options = {"window_strides": (stride, stride), "padding": "SAME", "dimension_numbers": HCWN}
            return jax.grad(lambda weights: squares(x, weights, **options))(weights)

        assert is_fast(in_fast_forms(gradient), x, weights)
        np.testing.assert_allclose(*both(gradient, x, weights), rtol=1e-4, atol=1e-3)


def test_within_loops_branches_calls_and_rules(library):
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC}
    x = image(2, 5, 5, 3)

    @jax.custom_jvp
    def doubled(weights):
        return 2 * gradient(weights)

    @doubled.defjvp
    def _(at, along):
        raise AssertionError

    def gradient(weights):
        return jax.grad(lambda weights: squares(x, weights, **options))(weights)

    def program(weights, steps):
        weights = lax.fori_loop(0, steps, lambda _, w: w - 0.001 * gradient(w), weights)
        weights, _ = lax.scan(lambda w, _: (w - 0.001 * jax.jit(gradient)(w), None), weights, length=2)
        weights = lax.cond(steps > 1, lambda w: w - 0.001 * gradient(w), lambda w: w, weights)
        return weights - 0.001 * doubled(weights) - 0.001 * jax.checkpoint(gradient)(weights)

    arguments = image(3, 3, 3, 3, seed=1), jnp.int32(3)
    assert is_fast(in_fast_forms(program), *arguments)
    np.testing.assert_allclose(*both(program, *arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (1, 5, 7, 2), (3, 2, 2, 1)])
def test_of_equal_entries_pooling_passes_the_derivative_to_the_first(shape):
    x = jnp.round(image(*shape))  # many are equal

    def derivative(x, weights):
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jax.grad(lambda x: (weights * _pool(x)).sum())(x), pooled

    def _pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    weights = image(*_pool(x).shape, seed=1)
    names = {each.primitive.name for each in operations(jax.make_jaxpr(in_fast_forms(derivative))(x, weights).jaxpr)}
    assert "select_and_scatter_add" not in names
    for ours, plain in zip(*both(derivative, x, weights), strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_windows_that_overlap_are_left_as_they_are():
    def derivative(x):
        return jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").sum())(x)

    x = image(2, 6, 6, 3)
    np.testing.assert_array_equal(*both(derivative, x))


def test_a_program_without_them_is_called_as_it_is():
    calls = []

    def function(tree):
        calls.append(tree)
        return {"sum": tree["a"] + 1}

    assert in_fast_forms(function)({"a": 1.0}) == {"sum": 2.0}
    assert calls[-1] == {"a": 1.0}


def test_the_loops_over_steps_and_data_of_an_own_model_are_fast():
    def loss(params, x, y):
        out = lax.conv_general_dilated(x, params, (1, 1), "SAME", dimension_numbers=NCHW)  # as PyTorch orders axes
        pooled = lax.reduce_window(jax.nn.relu(out), -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return (pooled.mean((1, 2, 3)) - y) ** 2

    model = Model("own", lambda key: jnp.zeros((2, 3, 3, 3)), loss, None)
    x, y, params = jnp.zeros((20, 3, 6, 6)), jnp.zeros(20), jnp.zeros((2, 3, 3, 3))
    steps: Any = minibatch_program(model, build(SolverConfig()), 4)
    problem, rate, rows = Subproblem(params, jnp.float32(0)), jnp.float32(0.1), jnp.zeros((3, 4), jnp.int32)
    assert is_fast(steps.__wrapped__, params, (), problem, rate, x, y, jnp.array([0, 20, 0, 3]), rows)
    places = Places(jnp.array([0]), jnp.array([20]), (jnp.ones(1),))
    walk: Any = walk_program(model, 5)
    assert is_fast(walk.__wrapped__, params, x, y, places, jnp.array([0, 1]))


def test_operations_are_counted_by_hand():
    perceptron = mlp(features=4, classes=2, hidden=8)
    params = jax.eval_shape(perceptron.init, jax.random.key(0))
    assert count_operations(perceptron.loss, params, image(1, 4), jnp.zeros(1, jnp.int32)) == 2 * (4 * 8 + 8 * 2)
    network = cnn((8, 8), classes=2, channels=(3, 5))
    params = jax.eval_shape(network.init, jax.random.key(0))
    found = count_operations(network.loss, params, image(1, 8, 8), jnp.zeros(1, jnp.int32))
    assert found == 2 * (64 * 25 * 3 + 16 * 25 * 3 * 5 + 2 * 2 * 5 * 2)

    def loop(weights, x):
        return lax.scan(lambda x, _: (lax.cond(x[0] > 0, lambda x: weights @ x, lambda x: x, x), None), x, length=7)[0]

    assert count_operations(loop, jnp.zeros((3, 3)), jnp.zeros(3)) == 7 * 2 * 9
