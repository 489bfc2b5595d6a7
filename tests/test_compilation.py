"""One compiled program serves all sizes, budgets, coefficients and learning rates."""

from typing import Any

import jax
import numpy as np
import pytest

import fedprox
from conftest import population_of
from fedprox.config import SolverConfig
from fedprox.measures.pass_program import walk_program
from fedprox.models import softmax_regression
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.solvers import Stepwise, build, minibatch_program


def test_nothing_is_compiled_again_when_sizes_epochs_mu_or_learning_rate_change(small_population):
    model = softmax_regression(small_population.shape[0], small_population.classes)
    local: Any = minibatch_program(model, build(SolverConfig()), 7)  # a batch size that no other test uses
    measure: Any = walk_program(model, LoadedSamples.of(small_population.train, model).block)
    before = measure._cache_size()
    for epochs, mu, rate, stragglers in ((1, 0.0, 0.1, 0.0), (3, 0.5, 0.2, 0.5), (5, 1.0, 0.01, 0.9)):
        result = fedprox.train(
            {
                "rounds": 3,
                "method": {"mu": mu},
                "solver": {"epochs": epochs, "learning_rate": rate, "batch_size": 7},
                "devices": {"per_round": 4, "stragglers": stragglers},
            },
            population=small_population,
        )
        sizes = {size for row in result.devices for size in row["samples"]}
        assert len(sizes) > 2
    assert local._cache_size() == 1
    assert measure._cache_size() <= before + 2  # over training data with gradients, over test data without


def test_populations_of_about_the_same_size_share_their_programs():
    plan = {"rounds": 1, "devices": {"per_round": 2}, "solver": {"epochs": 1, "batch_size": 6}}
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    fedprox.train(plan, population=population_of([9, 10, 20, 30], features=3, test=2))
    assert compiled
    compiled.clear()
    fedprox.train(plan, population=population_of([12, 13, 14, 28, 31], features=3, test=3))
    assert not compiled


@pytest.mark.parametrize("batch_size", [10, 0])
def test_small_devices_are_not_padded_to_the_largest(batch_size):
    # the work of a round is the sum of the devices' own steps; the step itself tells how often it is taken
    population = Population.from_arrays(
        [[0.0]] * 1010, [0, 1] * 505, [0] * 1000 + list(range(1, 11)), test=[False] * 1010
    )
    taken = []

    def step(params, gradient, state, learning_rate):
        jax.debug.callback(lambda: taken.append(1))
        return params, state

    def told(progress):
        jax.effects_barrier()
        counts.append(len(taken))

    counts = []
    solver = Stepwise("counted", lambda params: (), step)
    config = {"rounds": 2, "solver": {"epochs": 1, "batch_size": batch_size}, "devices": {"per_round": 11}}
    rows = fedprox.train(config, population=population, solver=solver, callbacks=[told]).devices
    largest = 100 if batch_size else 1
    assert all(sorted(row["steps"]) == [1] * 10 + [largest] for row in rows)
    assert np.diff(counts).tolist() == [10 + largest] * 2
