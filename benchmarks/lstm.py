"""How long a training step of the two LSTM models takes, beside `torch.nn.LSTM` on the same core.

    python -m benchmarks.lstm

A step is the gradient of a mini-batch of 10 and an SGD update: in our case inside the compiled local loop, proximal
term included; in PyTorch's eagerly, without one. Both run on one core with one thread, take turns, and the best of
many turns counts, since on a shared machine the best is what repeats. Wall time is given, and the process's CPU time,
which is the same on a quiet core and still tells something on a busy one. "plain" is our loop with automatic
differentiation of a plain scan in place of the hand-written backward pass.
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

from fedprox.core.compilation import prepare
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
        f"{'':16}{'units':>6}{'length':>8}{'clock':>7}{'torch':>8}{'ours':>8}{'plain':>8}{'ours/torch':>12}{'target':>8}"
    )
    for size in SIZES:
        best = best_of(turns, size)
        for clock in CLOCKS:
            times = "".join(f"{best[name, clock]:8.2f}" for name in ("torch", "ours", "plain"))
            ratio = best["ours", clock] / best["torch", clock]
            print(
                f"{size.name:16}{size.hidden:6}{size.length:8}{clock:>7}{times}{ratio:12.2f}{size.target:8.1f}",
                flush=True,
            )


def best_of(turns: int, size: Size) -> dict[tuple[str, str], float]:
    """Return the milliseconds per step by (who, clock)."""
    model = our_model(size)
    runs = {"torch": torch_turn(size), "ours": our_turn(model, size), "plain": our_turn(plain(model, size), size)}
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


def examples(size: Size) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.integers(0, size.rows, (STEPS * BATCH, size.length), dtype=np.int32)
    return x, random.integers(0, size.classes, STEPS * BATCH, dtype=np.int32)


def vectors(size: Size) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(size.rows, size.inputs)).astype(np.float32)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
