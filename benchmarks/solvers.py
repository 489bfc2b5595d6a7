"""What a step of each solver costs, in multiples of an SGD step, in one run.

    python -m benchmarks.solvers

One device with 5,000 samples, softmax regression with 10 classes, mini-batches of 10, as in the paper's experiments.
The solvers take turns, and the best of many turns counts, so that a busy machine slows all of them alike. Solvers that
work on the whole of the data are shown per mini-batch step of their budget.
"""

from __future__ import annotations

import time

import jax
import numpy as np
import optax

from fedprox import solvers
from fedprox.core.compilation import prepare
from fedprox.models import softmax_regression
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples, to_backend
from fedprox.solvers import LocalProblem
from fedprox.solvers.subproblem import Subproblem

STEPS, TURNS = 3000, 15


def main() -> None:
    prepare()
    print(f"{'features':>8}  {'solver':<18}{'us per step':>12}{'times SGD':>11}")
    for features in (60, 784):
        local = problem(features)
        each = {
            "sgd": solvers.sgd(),
            "momentum": solvers.sgd(0.9),
            "nesterov": solvers.sgd(0.9, nesterov=True),
            "adam": solvers.adam(),
            "optax.sgd": solvers.from_optax(optax.sgd(0.01)),
            "optax.adam": solvers.from_optax(optax.adam(0.01)),
            "optax.lion": solvers.from_optax(optax.lion(0.01)),
            "svrg": solvers.svrg(),
            "gradient_descent": solvers.gradient_descent(),
            "lbfgs": solvers.lbfgs(),
            "newton_cg": solvers.newton_cg(),
        }
        best = dict.fromkeys(each, float("inf"))
        for _ in range(TURNS + 1):  # the first turn compiles and is slower than any other
            for name, solver in each.items():
                clock = time.perf_counter()
                params, steps = solver.solve(local)
                jax.block_until_ready(params)
                best[name] = min(best[name], (time.perf_counter() - clock) / steps)
        for name, seconds in best.items():
            print(f"{features:>8}  {name:<18}{1e6 * seconds:>12.2f}{seconds / best['sgd']:>11.2f}")


def problem(features: int) -> LocalProblem:
    rng = np.random.default_rng(0)
    rows = 5000
    x = rng.normal(size=(rows, features)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(features, 10)) + 5 * rng.gumbel(size=(rows, 10)), axis=1).astype(np.int32)
    samples = Samples(x, y, np.array([0, rows]))
    model = softmax_regression(features, 10)
    anchor = to_backend(model.init(jax.random.key(0)))
    return LocalProblem(
        model=model,
        problem=Subproblem(anchor, to_backend(np.float32(0.1))),
        samples=samples,
        loaded=LoadedSamples.of(samples, model),
        device=0,
        round=1,
        seed=0,
        budget=STEPS,
        batch_size=10,
        learning_rate=0.01,
    )


if __name__ == "__main__":
    main()
