"""How long a training step of the two LSTM models takes, beside `torch.nn.LSTM` on the same core.

    python -m benchmarks.lstm

A step is the gradient of a mini-batch of 10 and an SGD update: in our case inside the compiled local loop, proximal
term included; in PyTorch's eagerly, without one. Both run on one core with one thread, take turns, and the best of
many turns counts, since on a shared machine the best is what repeats. Wall time is given, and the process's CPU time,
which is the same on a quiet core and still tells something on a busy one. "plain" is our loop with automatic
differentiation of a plain scan in place of the hand-written backward pass.

"products" are the matrix products of a step and nothing else, each with its own shape, one after another in compiled
loops; "peak" is one large product (512 rows, inner length 512) of as many operations. Both are XLA's, whose library is
the fastest of three on an AMD EPYC with AVX-512: 264 billion operations per second at 512 x 512 x 512 (NumPy 135,
PyTorch 119).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from fedprox.core.compilation import compiled, prepare
from fedprox.models import Model, char_lstm, classifier, sentiment_lstm
from fedprox.solvers import minibatch_program, sgd
from fedprox.solvers.solver import span
from fedprox.solvers.subproblem import Subproblem

BATCH = 10
STEPS = 2  # in one turn; a short turn has a chance to run undisturbed


@dataclass(frozen=True)
class Size:
    name: str
    hidden: int
    length: int
    inputs: int  # dimensions of the embedding
    rows: int  # of the embedding
    classes: int
    target: float  # the ratio to PyTorch's time that we want to stay below


SIZES = [
    Size("char_lstm", hidden=100, length=80, inputs=8, rows=80, classes=80, target=1.1),
    Size("sentiment_lstm", hidden=256, length=25, inputs=300, rows=5000, classes=2, target=1.5),
]


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def main(turns: int = 100) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    prepare()
    torch.set_num_threads(1)
    print(
        f"jax {jax.__version__}, torch {torch.__version__}, batch {BATCH}, one core, best of {turns} turns, ms per step"
    )
    print(
        f"{'':16}{'units':>6}{'length':>8}{'clock':>7}{'torch':>8}{'ours':>8}{'plain':>8}{'products':>10}{'peak':>8}"
        f"{'ours/torch':>12}{'target':>8}{'ours/products':>15}{'ours/peak':>11}"
    )
    for size in SIZES:
        best = best_of(turns, size)
        for clock in CLOCKS:
            widths = {"torch": 8, "ours": 8, "plain": 8, "products": 10, "peak": 8}
            times = "".join(f"{best[name, clock]:{width}.2f}" for name, width in widths.items())
            torch_ratio, product_ratio, peak_ratio = (
                best["ours", clock] / best[name, clock] for name in ("torch", "products", "peak")
            )
            print(
                f"{size.name:16}{size.hidden:6}{size.length:8}{clock:>7}{times}{torch_ratio:12.2f}{size.target:8.1f}"
                f"{product_ratio:15.2f}{peak_ratio:11.2f}",
                flush=True,
            )


def best_of(turns: int, size: Size) -> dict[tuple[str, str], float]:
    """Return the milliseconds per step by (who, clock)."""
    model = our_model(size)
    runs = {
        "torch": torch_turn(size),
        "ours": our_turn(model, size),
        "plain": our_turn(plain(model, size), size),
        "products": product_turn(products(size)),
        "peak": product_turn([(512, 512, round(operations(size) / (2 * 512**2)), 1)]),
    }
    best: dict[tuple[str, str], float] = {}
    for _ in range(turns):
        for name, run in runs.items():
            before = {clock: read() for clock, read in CLOCKS.items()}
            run()
            for clock, read in CLOCKS.items():
                taken = (read() - before[clock]) / STEPS * 1e3
                best[name, clock] = min(best.get((name, clock), taken), taken)
    return best


def our_model(size: Size) -> Model:
    if size.name == "char_lstm":
        return char_lstm(size.classes, size.length, size.inputs, size.hidden)
    return sentiment_lstm(vectors(size), size.classes, size.hidden)


def plain(model: Model, size: Size) -> Model:
    """Return the same model, as a plain scan over time for automatic differentiation."""
    table = jnp.asarray(vectors(size))

    def scores(params: Any, x: jax.Array) -> jax.Array:
        inputs = params.get("embedding", table)[x.T]
        for layer in (params["layer1"], params["layer2"]):

            def step(state: Any, x: jax.Array, layer: Any = layer) -> Any:
                hidden, cell = state
                i, f, g, o = jnp.split(x @ layer["input"] + hidden @ layer["hidden"] + layer["bias"], 4, axis=1)
                cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
                hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
                return (hidden, cell), hidden

            zero = jnp.zeros((len(x), size.hidden))
            _, inputs = lax.scan(step, (zero, zero), inputs)
        return inputs[-1] @ params["output"]["weight"] + params["output"]["bias"]

    return classifier("plain", model.init, scores)


def our_turn(model: Model, size: Size) -> Callable[[], None]:
    params = jax.device_put(model.init(jax.random.key(0)))
    x, y = examples(size)
    rows = np.arange(STEPS * BATCH, dtype=np.int32).reshape(STEPS, BATCH)
    program = minibatch_program(model, sgd(), BATCH)
    problem = Subproblem(params, np.float32(0.01))
    fixed = (params, (), problem, np.float32(0.1), jax.device_put(x), jax.device_put(y), span(0, len(x), 0, STEPS))

    def turn() -> None:
        jax.block_until_ready(program(*fixed, rows))

    turn()
    return turn


def torch_turn(size: Size) -> Callable[[], None]:
    embedding = torch.nn.Embedding(size.rows, size.inputs)
    embedding.weight.requires_grad_(size.name == "char_lstm")
    lstm = torch.nn.LSTM(size.inputs, size.hidden, num_layers=2, batch_first=True)
    dense = torch.nn.Linear(size.hidden, size.classes)
    trained = [p for module in (embedding, lstm, dense) for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1)
    x, y = (torch.from_numpy(array).long() for array in examples(size))

    def turn() -> None:
        for xs, ys in zip(x.split(BATCH), y.split(BATCH), strict=True):
            hidden, _ = lstm(embedding(xs))
            loss = torch.nn.functional.cross_entropy(dense(hidden[:, -1]), ys)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    turn()
    return turn


def products(size: Size) -> list[tuple[int, int, int, int]]:
    """Return rows, inner length and columns of each product of a step, and how often it is taken."""
    rows, gates = BATCH * size.length, 4 * size.hidden
    found: list[tuple[int, int, int, int]] = []
    for inputs in (size.inputs, size.hidden):
        found += [
            (rows, inputs, gates, 1),  # x U
            (BATCH, size.hidden, gates, size.length),  # h V
            (BATCH, gates, size.hidden, size.length),  # back through V
            (inputs, rows, gates, 1),  # the gradient of U
            (size.hidden, rows, gates, 1),  # the gradient of V
        ]
        if inputs == size.hidden or size.name == "char_lstm":  # fixed word vectors need no gradient
            found.append((rows, gates, inputs, 1))
    return found


def operations(size: Size) -> float:
    return sum(2.0 * rows * inner * columns * times for rows, inner, columns, times in products(size))


def product_turn(shapes: list[tuple[int, int, int, int]]) -> Callable[[], None]:
    """Return a turn of products alone."""

    def repeat(left: jax.Array, right: jax.Array, times: int) -> jax.Array:
        def multiply(_: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            left, product = carry  # the factor depends on the product before, or XLA would take it only once
            left = left.at[0, 0].set(product[0, 0])
            return left, left @ right

        return lax.fori_loop(0, times, multiply, (left, jnp.zeros((len(left), right.shape[1]))))[1]

    random = np.random.default_rng(0)
    program = compiled(repeat)
    calls = [
        (
            jax.device_put(random.normal(size=(rows, inner)).astype(np.float32)),
            jax.device_put(random.normal(size=(inner, columns)).astype(np.float32)),
            np.int32(STEPS * times),
        )
        for rows, inner, columns, times in shapes
    ]

    def turn() -> None:
        for call in calls:
            jax.block_until_ready(program(*call))

    turn()
    return turn


def examples(size: Size) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.integers(0, size.rows, (STEPS * BATCH, size.length), dtype=np.int32)
    return x, random.integers(0, size.classes, STEPS * BATCH, dtype=np.int32)


def vectors(size: Size) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(size.rows, size.inputs)).astype(np.float32)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
