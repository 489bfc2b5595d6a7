"""Limits in which the answer is known exactly."""

import jax
import numpy as np
import pytest

import fedprox
import reference_fedprox as reference
from conftest import population_of
from fedprox.models import softmax_regression
from fedprox.population import Population

PLAN = {"rounds": 5, "solver": {"epochs": 3, "batch_size": 4, "learning_rate": 0.1}, "devices": {"per_round": 3}}


def same_bits(first, second):
    return all(a.tobytes() == b.tobytes() for a, b in zip(*map(jax.tree.leaves, (first, second)), strict=True))


def test_fedprox_with_mu_0_and_no_stragglers_is_fedavg_bit_for_bit(small_population):
    ours = fedprox.train({**PLAN, "method": {"name": "fedprox", "mu": 0.0}}, population=small_population)
    fedavg = fedprox.train({**PLAN, "method": {"name": "fedavg"}}, population=small_population)
    assert same_bits(ours.params, fedavg.params)
    assert ours.history.column("train_loss") == fedavg.history.column("train_loss")


def test_mu_does_something(small_population):
    losses = [
        fedprox.train({**PLAN, "method": {"mu": mu}}, population=small_population).history[-1]["train_loss"]
        for mu in (0.0, 1.0, 5.0)
    ]
    assert len(set(losses)) == 3


def test_with_learning_rate_times_mu_equal_to_1_every_step_lands_on_the_anchor_minus_one_gradient_step():
    # w - eta (g(w) + (w - w_t) / eta) = w_t - eta g(w): the iterate depends on the last point only through g
    population = population_of([20])
    eta, steps = 0.25, 6
    result = fedprox.train(
        {
            "rounds": 1,
            "method": {"mu": 1 / eta},
            "solver": {"batch_size": 0, "epochs": steps, "learning_rate": eta},
            "devices": {"per_round": 1},
        },
        population=population,
    )
    x, y = population.train.of(0)
    weight, bias = np.zeros((population.classes, 5)), np.zeros(population.classes)
    for _ in range(steps):
        _, slope_weight, slope_bias = reference.losses_and_gradient(weight, bias, x, y)
        weight, bias = -eta * slope_weight, -eta * slope_bias
    np.testing.assert_allclose(result.params["weight"], weight, atol=1e-6)
    np.testing.assert_allclose(result.params["bias"], bias, atol=1e-6)


def test_one_device_one_round_one_full_batch_is_one_gradient_step():
    population = population_of([13])
    config = {
        "rounds": 1,
        "method": {"mu": 3.0},  # the proximal term is zero at its anchor
        "solver": {"batch_size": 0, "epochs": 1, "learning_rate": 0.5},
        "devices": {"per_round": 1},
    }
    result = fedprox.train(config, population=population)
    model = softmax_regression(5, population.classes)
    x, y = population.train.of(0)
    gradient = jax.grad(lambda params: model.loss(params, x, y).mean())(model.init(jax.random.key(0)))
    np.testing.assert_allclose(result.params["weight"], -0.5 * gradient["weight"], rtol=1e-5, atol=1e-7)


def test_a_device_drawn_m_times_weighs_m_over_k_and_is_listed_once():
    population = population_of([90, 5, 5])
    result = fedprox.train(
        {"rounds": 20, "solver": {"epochs": 1}, "devices": {"per_round": 8, "sampling": "proportional"}},
        population=population,
    )
    seen = 0
    for row in result.devices:
        assert len(set(row["device"])) == len(row["device"])
        assert sum(row["draws"]) == 8
        assert row["weight"] == pytest.approx([draws / 8 for draws in row["draws"]])
        seen += max(row["draws"]) > 1
    assert seen == 20


def test_uniform_weights_are_samples_over_samples_kept(small_population):
    config = {**PLAN, "method": {"name": "fedavg"}, "devices": {"per_round": 4, "stragglers": 0.5}}
    for row in fedprox.train(config, population=small_population).devices:
        total = sum(n for n, keep in zip(row["samples"], row["kept"], strict=True) if keep)
        expected = [n / total if keep else 0 for n, keep in zip(row["samples"], row["kept"], strict=True)]
        assert row["weight"] == pytest.approx(expected)
        assert sum(row["weight"]) == pytest.approx(1)


def test_where_everybody_is_dropped_the_model_stays_as_it_is(small_population):
    config = {**PLAN, "method": {"name": "fedavg"}, "devices": {"per_round": 3, "stragglers": 1.0}}
    result = fedprox.train(config, population=small_population)
    assert len(set(result.history.column("train_loss"))) == 1
    assert all(not any(row["kept"]) and sum(row["weight"]) == 0 for row in result.devices)
    assert all(sum(row["steps"]) == 0 for row in result.devices)


def test_everybody_may_fail(small_population):
    config = {**PLAN, "devices": {"per_round": 3, "failure": 1.0}}
    result = fedprox.train(config, population=small_population)
    assert len(set(result.history.column("train_loss"))) == 1
    assert all(all(row["failed"]) for row in result.devices)


def test_one_sample_per_device_and_a_batch_larger_than_any_device():
    population = Population.from_arrays(np.eye(4), [0, 1, 0, 1], np.arange(4), test=np.zeros(4))
    config = {"rounds": 2, "solver": {"batch_size": 50}, "devices": {"per_round": 4}}
    result = fedprox.train(config, population=population)
    assert result.devices[0]["budget"] == [20] * 4
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert result.history[-1]["test_accuracy"] is None


@pytest.mark.parametrize("solver", ["sgd", "adam", "svrg", "gradient_descent", "lbfgs"])
@pytest.mark.parametrize("features", [3, 300])
def test_one_sample_in_all(solver, features):
    """Every index is known then, and what nobody needs must not reach a single kernel."""
    x, y = np.ones((1, features), np.float32), np.array([1])
    population = Population.from_arrays(x, y, np.array([0]), test=np.array([False]), classes=2)
    config = {
        "rounds": 2,
        "devices": {"per_round": 1},
        "solver": {"name": solver, "learning_rate": 0.001, "epochs": 5},
        "model": {"name": "softmax_regression"},
        "measure": {"gamma": True},
    }
    losses = fedprox.train(config, population=population).history.column("train_loss")
    assert losses[0] == pytest.approx(np.log(2))
    assert losses[-1] < losses[0]
