"""Rounds of networks beside the same rounds in NumPy with PyTorch's gradients in double precision.

Devices, budgets, stragglers and orders of mini-batches are the library's own; networks, local steps and merging are
done again (`reference_methods`, `reference_networks`).
"""

import numpy as np
import pytest

from fedprox import Population, models, train
from fedprox.config import Config
from fedprox.core.trees import flatten_names
from fedprox.models.initial_model import initial_params
from reference_methods import Problem, final_models
from reference_networks import SCORES, torch

torch.set_num_threads(1)
SIZES, RATE = (50, 7, 33, 21, 16, 1), 0.02
SEED = 1  # with 5, an input of a ReLU is so near zero that double precision from w^0 (1 + 2e-7) ends elsewhere too
METHODS = {
    "fedavg": {},
    "fedprox": {"mu": 0.3},
    "scaffold": {},
    "fednova": {"mu": 0.1},
    "feddyn": {"alpha": 0.5},
}


def images(shape, classes=4):
    random = np.random.default_rng(1)
    device = np.repeat(np.arange(len(SIZES)), SIZES)
    y = random.integers(0, classes, len(device))
    patterns = random.normal(size=(classes, *shape))
    x = patterns[y] + random.normal(size=(len(y), *shape)) + random.normal(size=(len(SIZES), *shape))[device] / 2
    test = np.zeros(len(y), bool)
    return Population.from_arrays(x.astype(np.float32), y.astype(np.int32), device, test=test)


def flat(params):
    named = flatten_names(params)
    return np.concatenate([np.asarray(named[name], np.float64).ravel() for name in sorted(named)])


def as_problem(scores, params):
    """A network of `reference_networks` as a function of one vector, the parameters in the order of their names."""
    named = flatten_names(params)
    shapes = {name: np.shape(named[name]) for name in sorted(named)}

    def loss_at(w, x, y):
        parts = torch.split(w, [int(np.prod(shape)) for shape in shapes.values()])
        named = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return torch.nn.functional.cross_entropy(scores(named, torch.tensor(x).double()), torch.tensor(y).long())

    def gradient(w, x, y):
        at = torch.tensor(w, requires_grad=True)
        loss_at(at, x, y).backward()
        return at.grad.numpy()

    return Problem(flat(params), lambda w, x, y: loss_at(torch.tensor(w), x, y).item(), gradient)


@pytest.mark.parametrize(
    ("method", "network", "shape", "momentum"),
    [
        *((method, "lenet", (16, 16, 1), 0.9) for method in METHODS),
        ("fedavg", "mcmahan_cnn", (8, 8, 2), 0.0),
        ("scaffold", "resnet8", (8, 8, 3), 0.0),
    ],
)
def test_three_rounds_are_those_of_numpy_and_pytorch(method, network, shape, momentum):
    settings, population = METHODS[method], images(shape)
    config = {
        "seed": SEED,
        "rounds": 3,
        "model": {"name": network},
        "method": {"name": method, **settings},
        "solver": {"learning_rate": RATE, "batch_size": 16, "epochs": 2, "momentum": momentum},
        "devices": {"per_round": 4, "stragglers": 0.5},
        "measure": {"dissimilarity": False, "every": 3},
        "engine": {"workers": 1},
    }
    result = train(config, population=population)
    start = initial_params(Config.from_dict(config), models.build(network, shape, 4))
    assert any(any(record["straggler"]) for record in result.devices)
    problem = as_problem(SCORES[network], start)
    expected = final_models(
        method,
        population,
        result.devices,
        rate=RATE,
        batch_size=16,
        seed=SEED,
        problem=problem,
        solver_momentum=momentum,
        **settings,
    )
    moved = np.linalg.norm(expected[-1] - problem.start)
    assert moved > 0.05
    assert np.linalg.norm(flat(result.params) - expected[-1]) < 1e-4 * moved
