"""How fast is the model measured? One pass over the data beside the time to read it: python -m benchmarks.measuring

Loss, accuracy and the gradients of all devices, on data with the shape of federated MNIST (784 features) and of
Synthetic(1,1) (60 features), on all cores. Beside it stand what bounds it: a sum over the same bytes by NumPy, and
multiply-adds in registers, as many as the pass needs (four operations for every number and output of the model). Then
the two products that no way leads around, X W^T and R^T X, by NumPy's BLAS, and for ten classes the same pass in C, in
plain loops and with vectors in registers by hand. All take turns, and the best turn counts.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read with the import of NumPy: the parts are multiplied side by side anyway

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed import c_library, mnist_like, pointer, processor, versions
from fedprox.core.compilation import prepare
from fedprox.core.threads import Workers
from fedprox.core.trees import to_numpy
from fedprox.data import synthetic
from fedprox.measures import Measurer
from fedprox.models import Model, linear_regression, softmax_regression
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples

TURNS = 25
OPERATIONS = 160  # of ten multiply-adds of eight numbers


def best_of(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the best seconds of each, having them take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def contenders(population: Population, model: Model, outputs: int) -> dict[str, Callable[[], Any]]:
    """Return ways through the data for a model with a number of outputs."""
    import jax

    params = to_numpy(model.init(jax.random.key(0)))
    workers = Workers()
    parts = [x[begin:end] for x in arrays(population) for begin, end in bounds(len(x), workers.count)]
    weight = np.atleast_2d(params["weight"]).T
    residual = np.ones((max(map(len, parts)), outputs), np.float32)
    operations = 4 * outputs * sum(x.size for x in arrays(population))
    threads = ThreadPoolExecutor(workers.count)
    measurers = {
        gradients: Measurer(population, LoadedSamples.of(population.train, model), model, workers, gradients=gradients)
        for gradients in (True, False)
    }
    for measurer in measurers.values():
        measurer.compile(params)
    library = c_library()
    compute = library.multiply_adds
    compute.argtypes, compute.restype = [ctypes.c_long, ctypes.c_float, ctypes.c_float], ctypes.c_float
    share = operations // OPERATIONS // workers.count
    in_c: dict[str, Callable[[], Any]] = {}
    if outputs == 10:
        loops = {"C, plain loops": library.measure, "C, vectors by hand": library.measure_by_hand}
        in_c = {name: c_pass(loop, population, params, workers) for name, loop in loops.items()}
        ours = measurers[True].measure(params)
        for run in in_c.values():  # they do the same work
            np.testing.assert_allclose([ours.train_loss, ours.gradient_variance], run(), rtol=1e-3)

    def products(part: Any) -> None:
        _ = part @ weight, residual[: len(part)].T @ part

    return {
        "sum": lambda: list(threads.map(np.sum, parts)),
        "multiply-adds in registers": lambda: list(threads.map(lambda _: compute(share, 0.9, 1), range(workers.count))),
        "two products": lambda: list(threads.map(products, parts)),
        **in_c,
        "loss and accuracy" if model.predict else "loss": lambda: measurers[False].measure(params),
        "with all gradients": lambda: measurers[True].measure(params),
    }


def with_labels(population: Population, y: NDArray[Any]) -> Population:
    """Return the training samples with other labels."""
    samples = population.train
    owner = np.repeat(np.arange(population.devices), np.diff(samples.offsets))
    return Population.from_arrays(samples.x, y, owner, test=np.zeros(len(owner), bool))


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
        found = workers.run(walk, groups, costs)
        mean = sum(total.astype(float) for total, _ in found) / len(x)
        masses = np.diff(offsets) / len(x)
        return float(sum(sums[0] for _, sums in found) / len(x)), float(masses @ norms2 - mean @ mean)

    return run


def main() -> None:
    prepare()
    print(f"{platform.machine()}, {processor()}, {os.cpu_count()} cores; {', '.join(versions())}.")
    images, small = mnist_like(), synthetic(1.0, 1.0, seed=12)
    labels = images.train.y
    for name, population, model, outputs in (
        ("softmax regression, 10 classes, 784 features", images, softmax_regression(784, 10), 10),
        ("softmax regression, 2 classes, 784 features", with_labels(images, labels % 2), softmax_regression(784, 2), 2),
        ("linear regression, 784 features", with_labels(images, labels.astype(float)), linear_regression(784), 1),
        ("softmax regression, 10 classes, 60 features", small, softmax_regression(60, 10), 10),
    ):
        size, train = sum(x.nbytes for x in arrays(population)), population.train.x.nbytes
        found = best_of(contenders(population, model, outputs))
        print(f"\n| {name}, {size / 1e6:.1f} MB | ms | GB/s |\n|---|---|---|")
        for contender, seconds in found.items():
            read = train if contender.startswith("C") else size
            print(f"| {contender} | {seconds * 1e3:.2f} | {read / seconds / 1e9:.1f} |")


if __name__ == "__main__":
    main()
