"""The library's own solver as a function that the conformance checks can call; also an example of such a function."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.config import Config
from fedprox.conformance.problem import Params
from fedprox.core.trees import Tree, to_numpy
from fedprox.engines import Broadcast, Task, device_side
from fedprox.methods import fedprox
from fedprox.models import Model
from fedprox.participation.budget import steps_per_epoch
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.solvers import sgd

__all__ = ["ours"]


def ours(
    params: Params,
    x: Any,
    y: Any,
    *,
    mu: float,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
    embedding: bool = False,
) -> Params:
    """Return the local solution of one device, computed by SGD as in any run."""
    owner = np.zeros(len(y), int)
    population = Population.from_arrays(x, y, device=owner, test=np.zeros(len(y), bool))
    start = {name: np.asarray(array, np.float32) for name, array in params.items()}
    model = _model(embedding, tuple((name, array.shape) for name, array in start.items()))
    loaded = LoadedSamples.of(population.train, model)
    solver = {"learning_rate": learning_rate, "batch_size": batch_size}
    config = Config.from_dict({"seed": seed, "solver": solver})
    device = device_side(config, population.train, loaded, model, fedprox(), lambda device: sgd())
    steps = epochs * int(steps_per_epoch(len(y), batch_size))
    task = Task(device=0, budget=steps, weight=1.0, mass=1.0)
    broadcast = Broadcast(1, start, (), mu)
    solved = device.solve(task, broadcast, device.shared(broadcast)).solved
    return {name: np.asarray(array) for name, array in to_numpy(solved[1]).items()}


@lru_cache(maxsize=8)  # one object for one problem, so that compiled programs are found again
def _model(embedding: bool, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Model:
    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        inner = params["embedding"][x] if embedding else x @ params["first"]
        return (inner @ params["second"] - y) ** 2 / 2

    def init(key: jax.Array) -> Tree:
        return {name: jnp.zeros(shape) for name, shape in shapes}

    return Model("two linear layers", init, loss, predict=None)
