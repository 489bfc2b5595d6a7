"""The whole loop against an independent NumPy FedProx."""

import numpy as np
import pytest

import fedprox
import reference_fedprox as reference
from conftest import population_of
from fedprox.participation.budget import minibatches, split_batches


def start(population):
    features = population.shape[0]
    return np.zeros((population.classes, features)), np.zeros(population.classes)


def devices_of(population):
    return [population.train.of(k) for k in range(population.devices)]


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_a_leaf_folder_with_full_batches_gives_the_same_losses_variances_and_dissimilarities(write_leaf, mu):
    random = np.random.default_rng(1)
    users = {f"user-{k}": (random.normal(k / 3, 1, (9 + 5 * k, 6)), random.integers(0, 4, 9 + 5 * k)) for k in range(6)}
    folder = write_leaf(users, {name: (x[:2], y[:2]) for name, (x, y) in users.items()})
    result = fedprox.train(
        {
            "rounds": 8,
            "data": {"name": "leaf", "path": str(folder)},
            "method": {"mu": mu},
            "solver": {"batch_size": 0, "epochs": 4, "learning_rate": 0.2},
            "devices": {"per_round": 6},
        }
    )
    devices = [(np.asarray(x, np.float32), np.asarray(y)) for x, y in users.values()]
    weight, bias = np.zeros((4, 6)), np.zeros(4)
    sizes = np.array([len(y) for _, y in devices])
    for row in result.history:
        loss, variance, b = reference.measures(weight, bias, devices)
        assert row["train_loss"] == pytest.approx(loss, rel=1e-5)
        assert row["gradient_variance"] == pytest.approx(variance, rel=1e-5)
        assert row["dissimilarity"] == pytest.approx(b, rel=1e-5)
        batches = [[np.arange(size)] * 4 for size in sizes]
        weight, bias = reference.round_of(weight, bias, devices, range(6), batches, sizes / sizes.sum(), 0.2, mu)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_mini_batches_stragglers_and_both_samplings(method, sampling, epochs):
    population = population_of([7, 23, 4, 31, 12, 9])
    mu = {"mu": 0.5} if method == "fedprox" else {}
    result = fedprox.train(
        {
            "seed": 3,
            "rounds": 6,
            "method": {"name": method, **mu},
            "solver": {"batch_size": 4, "epochs": epochs, "learning_rate": 0.1},
            "devices": {"per_round": 4, "sampling": sampling, "stragglers": 0.5},
        },
        population=population,
    )
    devices = devices_of(population)
    weight, bias = start(population)
    for row, metrics in zip(result.devices, result.history[1:], strict=True):
        kept = [i for i, keep in enumerate(row["kept"]) if keep]
        chosen = [row["device"][i] for i in kept]
        batches = []
        for i, k in zip(kept, chosen, strict=True):
            pieces = minibatches(row["samples"][i], 4, row["steps"][i], seed=3, round=row["round"], device=k, piece=16)
            batches.append([rows for piece in pieces for rows in split_batches(piece, row["samples"][i])])
            assert len(batches[-1]) == row["steps"][i] == row["budget"][i]
        if kept:
            weights = [row["weight"][i] for i in kept]
            weight, bias = reference.round_of(weight, bias, devices, chosen, batches, weights, 0.1, mu.get("mu", 0))
        loss, variance, b = reference.measures(weight, bias, devices)
        assert metrics["train_loss"] == pytest.approx(loss, rel=1e-5)
        assert metrics["gradient_variance"] == pytest.approx(variance, rel=1e-4)
        assert metrics["dissimilarity"] == pytest.approx(b, rel=1e-5)
    np.testing.assert_allclose(result.params["weight"], weight, rtol=1e-4, atol=1e-6)
