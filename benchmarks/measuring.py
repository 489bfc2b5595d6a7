"""How fast is the model measured? One pass over the data beside the time to read it: python -m benchmarks.measuring

Loss, accuracy and the gradients of all devices for softmax regression, on data with the shape of federated MNIST (784
features) and of Synthetic(1,1) (60 features), on all cores. Beside it stand a sum over the same bytes by NumPy, and the
two products that no way leads around, X W^T and R^T X, by NumPy's BLAS. All take turns, and the best turn counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.speed import mnist_like
from fedprox.config import Config
from fedprox.data import model_for, synthetic
from fedprox.measures import Measurer
from fedprox.population import Population
from fedprox.resident import Resident
from fedprox.runtime import Workers, prepare
from fedprox.trees import to_numpy

TURNS = 15


def best_of(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the best seconds of each, having them take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def contenders(population: Population) -> dict[str, Callable[[], Any]]:
    import jax

    model = model_for(Config(), population)
    params = to_numpy(model.init(jax.random.key(0)))
    x, workers = population.train.x, Workers()
    parts = np.array_split(np.arange(len(x)), workers.count)
    parts = [x[part[0] : part[-1] + 1] for part in parts]
    residual = np.ones((max(map(len, parts)), population.classes), np.float32)
    threads = ThreadPoolExecutor(workers.count)
    measurers = {
        gradients: Measurer(population, Resident.of(population.train, model), model, workers, gradients=gradients)
        for gradients in (True, False)
    }
    for measurer in measurers.values():
        measurer.compile(params)

    def products(part: Any) -> None:
        _ = part @ params["weight"].T, residual[: len(part)].T @ part

    return {
        "read": lambda: list(threads.map(np.sum, parts)),
        "products": lambda: list(threads.map(products, parts)),
        "loss and accuracy": lambda: measurers[False].measure(params),
        "with all gradients": lambda: measurers[True].measure(params),
    }


def main() -> None:
    prepare()
    print("| data | MB | read, GB/s | two products, GB/s | loss and accuracy, GB/s | with all gradients, GB/s |")
    print("|---|---|---|---|---|---|")
    for name, population in (("784 features", mnist_like()), ("60 features", synthetic(1.0, 1.0, seed=12))):
        size = population.train.x.nbytes
        found = best_of(contenders(population))
        print(f"| {name} | {size / 1e6:.0f} | " + " | ".join(f"{size / s / 1e9:.1f}" for s in found.values()) + " |")


if __name__ == "__main__":
    main()
