"""How fast is the model measured? One pass over the data beside the time to read it: python -m benchmarks.measuring

Loss, accuracy and the gradients of all devices for softmax regression, on data with the shape of federated MNIST (784
features) and of Synthetic(1,1) (60 features), on all cores. Beside it stand a sum over the same bytes by NumPy, the two
products that no way leads around, X W^T and R^T X, by NumPy's BLAS, and the same pass in C, in plain loops and with
vectors in registers by hand (for ten classes). All take turns, and the best turn counts.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed import c_library, mnist_like, pointer, processor, versions
from fedprox.config import Config
from fedprox.data import model_for, synthetic
from fedprox.measures import Measurer
from fedprox.population import Population
from fedprox.resident import Resident
from fedprox.runtime import Workers, prepare
from fedprox.trees import to_numpy

TURNS = 25


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
    workers = Workers()
    parts = [x[begin:end] for x in arrays(population) for begin, end in bounds(len(x), workers.count)]
    residual = np.ones((max(map(len, parts)), population.classes), np.float32)
    threads = ThreadPoolExecutor(workers.count)
    measurers = {
        gradients: Measurer(population, Resident.of(population.train, model), model, workers, gradients=gradients)
        for gradients in (True, False)
    }
    for measurer in measurers.values():
        measurer.compile(params)
    library = c_library()
    plain, by_hand = (c_pass(each, population, params, workers) for each in (library.measure, library.measure_by_hand))
    ours = measurers[True].measure(params)
    for theirs in (plain(), by_hand()):  # they do the same work
        np.testing.assert_allclose([ours.train_loss, ours.gradient_variance], theirs, rtol=1e-3)

    def products(part: Any) -> None:
        _ = part @ params["weight"].T, residual[: len(part)].T @ part

    return {
        "sum": lambda: list(threads.map(np.sum, parts)),
        "two products": lambda: list(threads.map(products, parts)),
        "C, plain loops": plain,
        "C, vectors by hand": by_hand,
        "loss and accuracy": lambda: measurers[False].measure(params),
        "with all gradients": lambda: measurers[True].measure(params),
    }


def arrays(population: Population) -> list[NDArray[np.float32]]:
    return [population.train.x, population.test.x]


def bounds(rows: int, parts: int) -> list[tuple[int, int]]:
    return [(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


def c_pass(measure: Any, population: Population, params: Any, workers: Workers) -> Callable[[], tuple[float, float]]:
    """Return the pass over the training data in C, which returns the loss and the variance of gradients."""
    x, y, offsets = population.train.x, population.train.y, population.train.offsets
    classes, features = params["weight"].shape
    size = classes * features + classes
    wanted = np.linspace(0, len(x), 8 * workers.count + 1)  # many parts, since devices differ
    cuts = np.unique(np.searchsorted(offsets, wanted)).clip(max=population.devices)
    groups = [(int(first), int(end)) for first, end in itertools.pairwise(cuts) if end > first]
    norms2 = np.zeros(population.devices, np.float32)

    def walk(group: tuple[int, int]) -> tuple[Any, Any]:
        first, end = group
        total, scratch, sums = np.zeros(size, np.float32), np.empty(size, np.float32), np.zeros(2)
        of_group = np.zeros(end - first + 32, np.float32)  # shares no cache line with what another thread writes
        measure(
            *map(pointer, (x, y, offsets[first:])),
            *(end - first, features, classes),
            *map(pointer, (params["weight"], params["bias"], total, scratch, sums, of_group)),
        )
        norms2[first:end] = of_group[: end - first]
        return total, sums

    def run() -> tuple[float, float]:
        costs = [int(offsets[end] - offsets[first]) for first, end in groups]
        found = [answer for _, answer in workers.run(walk, groups, costs)]
        mean = sum(total.astype(float) for total, _ in found) / len(x)
        masses = np.diff(offsets) / len(x)
        return float(sum(sums[0] for _, sums in found) / len(x)), float(masses @ norms2 - mean @ mean)

    return run


def main() -> None:
    prepare()
    print(f"{platform.machine()}, {processor()}, {os.cpu_count()} cores; {', '.join(versions())}.")
    for name, population in (("784 features", mnist_like()), ("60 features", synthetic(1.0, 1.0, seed=12))):
        size, train = sum(x.nbytes for x in arrays(population)), population.train.x.nbytes
        found = best_of(contenders(population))
        print(f"\n| {name}, {size / 1e6:.1f} MB | ms | GB/s |\n|---|---|---|")
        for contender, seconds in found.items():
            read = train if contender.startswith("C") else size
            print(f"| {contender} | {seconds * 1e3:.2f} | {read / seconds / 1e9:.1f} |")


if __name__ == "__main__":
    main()
