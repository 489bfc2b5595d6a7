"""Weights are drawn as the first of longer rows of numbers; they are those of `jax.random`."""

import jax
import numpy as np
import pytest

from fedprox.models import draws

KEY = jax.random.key(3)


@pytest.mark.parametrize("shape", [(2, 3, 2), (256,), (5, 53)])
def test_numbers_are_those_of_jax(shape):
    np.testing.assert_array_equal(
        draws.normal(KEY, shape, 0.3), np.float32(0.3) * np.asarray(jax.random.normal(KEY, shape))
    )
    np.testing.assert_array_equal(
        draws.uniform(KEY, shape, 0.37), jax.random.uniform(KEY, shape, minval=-0.37, maxval=0.37)
    )


def test_keys_are_those_of_jax():
    count = 5
    expected = jax.random.key_data(jax.random.split(KEY, count))
    found = draws.keys(KEY, count)
    np.testing.assert_array_equal([jax.random.key_data(key) for key in found], expected)
    traced = jax.jit(lambda key: [jax.random.key_data(each) for each in draws.keys(key, count)])(KEY)
    np.testing.assert_array_equal(traced, expected)


def test_a_generator_whose_rows_do_not_begin_alike_is_given_the_exact_length():
    key = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(draws.uniform(key, (6,), 1.0), jax.random.uniform(key, (6,), minval=-1.0))
    assert [jax.random.key_impl(each) for each in draws.keys(key, 2)] == ["rbg", "rbg"]
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(draws.uniform(KEY, (7,), 1.0), jax.random.uniform(KEY, (7,), minval=-1.0))


def test_numbers_are_those_of_jax_within_a_compiled_function():
    found = jax.jit(lambda key: draws.normal(key, (2, 5), 0.5))(KEY)
    np.testing.assert_allclose(found, 0.5 * np.asarray(jax.random.normal(KEY, (2, 5))), rtol=1e-6)


def test_shapes_share_programs():
    draws.normal(KEY, (4, 6), 1.0)
    compiled = []
    listen = lambda event, seconds, **_: compiled.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        draws.normal(KEY, (8, 7), 2.0)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [event for event in compiled if event.endswith("backend_compile_duration")]
