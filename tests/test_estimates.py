"""Curvature and dissimilarity from data, against spectra that are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedprox import theory
from fedprox.models import linear_regression, mlp, softmax_regression
from fedprox.population import Population
from fedprox.theory.spectrum import lanczos

RANDOM = np.random.default_rng(7)
SIZES = [3, 17, 40]


@pytest.fixture(scope="module")
def labelled():
    device = np.repeat(np.arange(len(SIZES)), SIZES)
    x = RANDOM.normal(size=(len(device), 4)) * [3.0, 1.0, 0.5, 0.1] + 0.5
    y = RANDOM.integers(3, size=len(device))
    return Population.from_arrays(x, y, device, test=np.zeros(len(device), bool))


@pytest.fixture(scope="module")
def measured(labelled):
    train = labelled.train
    device = np.repeat(np.arange(len(SIZES)), SIZES)
    y = RANDOM.normal(size=len(train.y))
    return Population.from_arrays(train.x, y, device, test=np.zeros(len(device), bool))


def dense_hessian(model, params, x, y):
    flat, unflatten = ravel_pytree(jax.tree.map(jnp.asarray, params))
    return np.asarray(jax.jit(jax.hessian(lambda v: model.loss(unflatten(v), x, y).mean()))(flat), np.float64)


@pytest.mark.parametrize(
    "eigenvalues", [[5.0], [3.0, -4.0], [1.0, 1.0, 1.0], [0.0, 0.0], [9.0, 2.0, 1.0, 0.0, -1.0, -3.0]]
)
def test_lanczos_finds_both_ends(eigenvalues):
    turn, _ = np.linalg.qr(RANDOM.normal(size=(len(eigenvalues), len(eigenvalues))))
    matrix = turn @ np.diag(eigenvalues) @ turn.T
    found = lanczos(lambda v: matrix @ v, RANDOM.normal(size=len(eigenvalues)), tolerance=1e-9)
    assert found.largest == pytest.approx(max(eigenvalues), abs=1e-9)
    assert found.smallest == pytest.approx(min(eigenvalues), abs=1e-9)
    assert found.products <= len(eigenvalues)


def test_lanczos_on_a_large_matrix_is_within_its_residual():
    spectrum = np.sort(RANDOM.normal(size=400))
    spectrum[-1], spectrum[0] = 10.0, -6.0
    found = lanczos(lambda v: spectrum * v, RANDOM.normal(size=400), tolerance=1e-6)
    assert found.products < 60
    assert abs(found.largest - 10) <= found.residual + 1e-9
    assert abs(found.smallest + 6) <= found.residual + 1e-9


@pytest.mark.parametrize("bias", [True, False])
def test_least_squares_curvature_is_exact(measured, bias):
    model = linear_regression(4, bias=bias)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0)))
    found = theory.curvature(measured, model, params, range(3))
    exact = []
    for device, extremes in enumerate(found):
        x, _ = measured.train.of(device)
        rows = np.hstack([x, np.ones((len(x), 1))]) if bias else x
        values = np.linalg.eigvalsh(rows.T.astype(float) @ rows / len(x))
        assert extremes.largest == pytest.approx(values[-1], rel=1e-5)
        assert extremes.smallest == pytest.approx(values[0], abs=1e-5 * values[-1])
        exact.append(values[-1])
    smooth = theory.smoothness(measured, model)
    assert smooth.is_bound
    assert smooth.L_minus == 0
    assert pytest.approx(max(exact), rel=1e-6) == smooth.L


def test_the_global_curvature_is_that_of_all_samples(measured):
    model = linear_regression(4)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0)))
    rows = np.hstack([measured.train.x, np.ones((len(measured.train), 1))]).astype(float)
    largest = np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1]
    assert theory.global_curvature(measured, model, params).largest == pytest.approx(largest, rel=1e-5)
    assert largest <= theory.smoothness(measured, model).L


def softmax_hessian(weight, x):
    """Return mean_i (diag(p_i) - p_i p_i^T) (x) (x_i, 1)(x_i, 1)^T."""
    scores = x @ weight.T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.hstack([x, np.ones((len(x), 1))])
    return sum(np.kron(np.diag(q) - np.outer(q, q), np.outer(r, r)) for q, r in zip(p, rows, strict=True)) / len(x)


def test_softmax_curvature_equals_the_closed_form_and_stays_below_the_bound(labelled):
    model = softmax_regression(4, 3)
    weight = RANDOM.normal(size=(3, 4)).astype(np.float32)
    params = {"bias": np.zeros(3, np.float32), "weight": weight}
    for device, extremes in enumerate(theory.curvature(labelled, model, params, range(3))):
        x, _ = labelled.train.of(device)
        values = np.linalg.eigvalsh(softmax_hessian(weight.astype(float), x.astype(float)))
        assert extremes.largest == pytest.approx(values[-1], rel=1e-4)
        assert abs(extremes.smallest) <= extremes.residual + 1e-5 * values[-1]
        assert extremes.largest <= model.curvature_bound(x)


def test_the_softmax_bound_is_reached():
    """Two classes, equally likely: diag(p) - p p^T has the eigenvalue 1/2, so that the bound is attained."""
    x = RANDOM.normal(size=(20, 2)).astype(np.float32)
    values = np.linalg.eigvalsh(softmax_hessian(np.zeros((2, 2)), x.astype(float)))
    assert softmax_regression(2, 2).curvature_bound(x) == pytest.approx(values[-1], rel=1e-5)


def test_negative_curvature_of_a_network_is_found_and_is_an_estimate(labelled):
    model = mlp(4, 3, hidden=5)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(1)))
    found = theory.curvature(labelled, model, params, range(3))
    values = np.linalg.eigvalsh(dense_hessian(model, params, *labelled.train.of(2)))
    slack = found[2].residual + 1e-4 * values[-1]
    assert found[2].largest == pytest.approx(values[-1], abs=slack)
    assert found[2].smallest == pytest.approx(values[0], abs=slack)
    smooth = theory.smoothness(labelled, model, [params])
    assert not smooth.is_bound
    assert smooth.L_minus > 0
    assert max(extremes.largest for extremes in found) <= smooth.L
    assert "3 of 3 devices at 1 models" in smooth.source
    assert "2 of 3 devices" in theory.smoothness(labelled, model, [params], most_devices=2).source
    with pytest.raises(ValueError, match="points must hold parameters"):
        theory.smoothness(labelled, model)


def test_dissimilarity_along_a_trajectory():
    rounds = [(4.0, 1.2), (1.0, 1.5), (0.01, 9.0)]
    assert theory.dissimilarity_along(rounds, 0.1) == 1.5
    assert theory.dissimilarity_along(rounds, 0.0) == 9.0
    assert theory.dissimilarity_along(rounds, 100.0) == 1.0
    with pytest.raises(ValueError, match="epsilon"):
        theory.dissimilarity_along(rounds, float("nan"))


@pytest.mark.parametrize("bias", [True, False])
def test_linear_regression_gradient_is_that_of_its_loss(bias):
    model = linear_regression(3, bias=bias)
    params = jax.tree.map(lambda leaf: leaf + 0.3, model.init(jax.random.key(0)))
    x, y = jnp.asarray(RANDOM.normal(size=(5, 3))), jnp.asarray(RANDOM.normal(size=5))
    weights = jnp.array([0.2, 0.0, 0.5, 0.1, 0.2])
    by_autodiff = jax.grad(lambda p: jnp.sum(weights * model.loss(p, x, y)))(params)
    gradient = model.gradient(params, x, y, weights)
    assert set(gradient) == set(params)
    for name, slope in gradient.items():
        np.testing.assert_allclose(slope, by_autodiff[name], rtol=1e-5)
