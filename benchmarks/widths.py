"""Microseconds per mini-batch step of softmax regression over shapes, beside plain C that knows the width or not.

    python -m benchmarks.widths [--features 8 56 60 ...] [--classes 10] [--batches 10] [--turns 100]

One call of the compiled loop takes up to 1,024 steps with the proximal term on one core, on 500 rows of random numbers;
so do the C loops (`loop.c`), one compiled for this number of features (`-DWIDTH`), one that takes it as an argument.
Contenders take turns, and the best turn counts. What is printed is Markdown, for `benchmarks/README.md`. A width whose
step takes more than 5% longer than that of a larger one is marked.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.speed import LEARNING_RATE, MU, c_library, pointer, stay_on
from fedprox.core.compilation import prepare
from fedprox.models import softmax_regression
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples, scalar, to_backend
from fedprox.solvers import sgd
from fedprox.solvers.solver import span
from fedprox.solvers.stepwise import minibatch_program
from fedprox.solvers.subproblem import Subproblem

ROWS = 500
WIDTHS = (8, 16, 24, 32, 48, 56, 59, 60, 64, 72, 80, 96, 100, 128, 129, 160, 200, 256, 384, 512, 784, 1024, 1536, 2048)


class Shape(NamedTuple):
    features: int
    classes: int
    batch: int


class Steps:
    """Steps of one shape, for all contenders the same."""

    def __init__(self, shape: Shape, steps: int) -> None:
        self.shape, self.steps = shape, steps
        random = np.random.default_rng(0)
        self.x = random.normal(size=(ROWS, shape.features)).astype(np.float32)
        self.y = random.integers(0, shape.classes, ROWS).astype(np.int32)
        self.rows = random.integers(0, ROWS, (steps, shape.batch)).astype(np.int32)

    def ours(self) -> Callable[[], Any]:
        """Return the compiled loop of the library."""
        model, batch = softmax_regression(self.shape.features, self.shape.classes), self.shape.batch
        program = minibatch_program(model, sgd(), batch)
        problem = Subproblem(to_backend(model.init(jax.random.key(0))), scalar(MU))
        loaded = LoadedSamples.of(Samples(self.x, self.y, np.array([0, ROWS])), model)
        data = (problem, scalar(LEARNING_RATE), loaded.x, loaded.y)
        place, rows = jax.device_put(span(0, self.steps * batch, 0, self.steps)), jax.device_put(self.rows)
        return lambda: np.asarray(program(problem.anchor, (), *data, place, rows)[0]["weight"])

    def c_loop(self, *flags: str) -> Callable[[], Any]:
        """Return the C loop, compiled with further flags."""
        features, classes, batch = self.shape
        solve = c_library(*flags).solve
        sizes, order = np.full(self.steps, batch, np.int32), self.rows.ravel()
        start, no_bias = np.zeros((classes, features), np.float32), np.zeros(classes, np.float32)
        scratch = np.empty(classes * features + classes, np.float32)

        def run() -> Any:
            weight, bias = start.copy(), no_bias.copy()
            solve(
                *(pointer(array) for array in (self.x, self.y, order, sizes)),
                self.steps,
                features,
                classes,
                ctypes.c_float(LEARNING_RATE),
                ctypes.c_float(MU),
                *(pointer(array) for array in (start, no_bias, weight, bias, scratch)),
            )
            return weight

        return run


def measure(shapes: list[Shape], turns: int) -> dict[Shape, list[float]]:
    """Return the best microseconds per step for every shape: ours, C that knows the width, C that does not."""
    works = [
        Steps(shape, max(20, min(1024, 10**7 // (shape.features * shape.classes * shape.batch)))) for shape in shapes
    ]
    contenders = [[work.ours(), work.c_loop(f"-DWIDTH={work.shape.features}"), work.c_loop()] for work in works]
    for ours, *others in contenders:
        for other in others:
            np.testing.assert_allclose(other(), ours(), rtol=2e-3, atol=2e-4)  # they do the same work
    best = np.full((len(works), 3), np.inf)
    for _, (row, work), column in itertools.product(range(turns), enumerate(works), range(3)):
        begin = time.perf_counter()
        contenders[row][column]()
        best[row, column] = min(best[row, column], (time.perf_counter() - begin) / work.steps * 1e6)
    return dict(zip(shapes, best.tolist(), strict=True))


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.widths", description="Microseconds per step by shape.")
    options.add_argument("--features", type=int, nargs="+", default=WIDTHS)
    options.add_argument("--classes", type=int, nargs="+", default=[10])
    options.add_argument("--batches", type=int, nargs="+", default=[10])
    options.add_argument("--turns", type=int, default=100, help="turns of each contender (default 100)")
    chosen = options.parse_args()
    prepare()
    stay_on({min(os.sched_getaffinity(0))})
    orders = itertools.product(chosen.classes, chosen.batches, sorted(chosen.features))
    best = measure([Shape(features, classes, batch) for classes, batch, features in orders], chosen.turns)
    print("| classes | batch | features | fedprox, us per step | C, width fixed | ratio | C, width at run time | |")
    print("|---|---|---|---|---|---|---|---|")
    for shape, (ours, fixed, free) in best.items():
        larger = [times[0] for other, times in best.items() if other[1:] == shape[1:] and other > shape]
        mark = "slower than a larger one" if ours > 1.05 * min(larger, default=np.inf) else ""
        cells = [f"{ours:.2f}", f"{fixed:.2f}", f"{ours / fixed:.2f}", f"{free:.2f}"]
        print("| " + " | ".join([str(shape.classes), str(shape.batch), str(shape.features), *cells, mark]) + " |")


if __name__ == "__main__":
    main()
