"""Microseconds per local step: this library end to end, beside loops in PyTorch, NumPy and C on the same work.

    python -m benchmarks.speed [--rounds 10] [--turns 6]

One local step is one mini-batch of 10 of softmax regression (10 classes) with the proximal term. W1 is Synthetic(1,1):
60 features, 30 devices. W2 has the shape of federated MNIST: 784 features, 1,000 devices, sizes by a power law. K = 10,
E = 20. The loops take the same steps as the library on the same mini-batches. All take turns, so that a busy machine is
busy for all, and the best of several turns counts. `fedprox` is measured through `fedprox.train`, as the sum of the
rounds' `solve_seconds`: sampling, mini-batch orders, local loops, merging. FedJAX and pfl join where they are
installed: they take as many steps on mini-batches of their own (`benchmarks.peers`), measured over whole rounds too.
All on one core, but for the last table. What is printed is Markdown, for `benchmarks/README.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedprox
from benchmarks.peers import fedjax_rounds, pfl_rounds
from fedprox.core.threads import Workers
from fedprox.data import synthetic
from fedprox.participation.budget import minibatches, split_batches
from fedprox.population import Population

Seconds = NDArray[np.float64]  # of every round

LEARNING_RATE, MU, BATCH, EPOCHS = 0.01, 1.0, 10, 20
TWO_CORE_TURNS = 20  # as many times more turns: two cores are rarely both undisturbed
SLOW = {"NumPy loop", "PyTorch, eager", "FedJAX", "pfl"}  # these need not be asked as often
PEERS = {"FedJAX", "pfl"}  # these draw their own mini-batches and check their own work


def mnist_like(devices: int = 1000, seed: int = 0) -> Population:
    random = np.random.default_rng(seed)
    sizes = np.maximum(10, (random.pareto(1.5, devices) * 25).astype(int) + 10).clip(max=2000)
    owner = np.repeat(np.arange(devices), sizes)
    x = random.normal(size=(len(owner), 784)).astype(np.float32)
    y = (owner + random.integers(0, 2, len(owner))) % 10
    return Population.from_arrays(x, y, owner, test=np.arange(len(owner)) == 0)


class Work:
    """The steps of some rounds, drawn as the library draws them."""

    def __init__(self, name: str, population: Population, rounds: int) -> None:
        self.name, self.population, self.rounds = name, population, rounds
        self.config: dict[str, Any] = {
            "rounds": rounds,
            "method": {"mu": MU},
            "solver": {"learning_rate": LEARNING_RATE, "batch_size": BATCH, "epochs": EPOCHS},
            "measure": {"every": 10**6, "dissimilarity": False},
        }
        result = fedprox.train({**self.config, "engine": {"workers": 1}}, population=population)
        self.jobs: list[list[tuple[int, list[Any], float]]] = []
        for row in result.devices:
            jobs = []
            for device, samples, steps, weight in zip(
                row["device"], row["samples"], row["steps"], row["weight"], strict=True
            ):
                pieces = minibatches(samples, BATCH, steps, seed=0, round=row["round"], device=device, piece=1024)
                batches = [rows for piece in pieces for rows in split_batches(piece, samples)]
                jobs.append((device, batches, weight))
            self.jobs.append(jobs)
        self.steps = sum(len(batches) for jobs in self.jobs for _, batches, _ in jobs)
        self.final = result.params

    def by_hand(
        self, solve: Callable[[int, list[Any], Any, Any], tuple[Any, Any]], workers: Workers | None = None
    ) -> tuple[Seconds, Any]:
        """Return the seconds of every round and the last weights."""
        classes, features = self.population.classes, self.population.shape[0]
        weight, bias = np.zeros((classes, features), np.float32), np.zeros(classes, np.float32)
        seconds = np.zeros(len(self.jobs))
        for round, jobs in enumerate(self.jobs):
            begin = time.perf_counter()
            costs = [len(batches) for _, batches, _ in jobs]
            at = (weight, bias)
            solved = (workers or Workers(1)).run(lambda job, at=at: solve(job[0], job[1], *at), jobs, costs)
            shares = [np.float32(share) for _, _, share in jobs]
            weight = sum(p * w for p, (w, _) in zip(shares, solved, strict=True))
            bias = sum(p * b for p, (_, b) in zip(shares, solved, strict=True))
            seconds[round] = time.perf_counter() - begin
        return seconds, weight


def ours(work: Work, workers: int = 1) -> tuple[Seconds, Any]:
    result = fedprox.train({**work.config, "engine": {"workers": workers}}, population=work.population)
    return np.array([row["solve_seconds"] for row in result.devices]), result.params["weight"]


def c_library(*more_flags: str) -> ctypes.CDLL:
    """Return the compiled `loop.c`; `-DWIDTH=60` fixes the number of features."""
    source = Path(__file__).with_name("loop.c")
    library = Path(tempfile.mkdtemp()) / "loop.so"
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", *more_flags]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def pointer(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def c_loop(work: Work, workers: int = 1) -> Callable[[], tuple[Seconds, Any]]:
    solve = c_library().solve
    population = work.population
    classes, features = population.classes, population.shape[0]
    orders = {
        id(batches): (np.concatenate(batches).astype(np.int32), np.array([len(b) for b in batches], np.int32))
        for jobs in work.jobs
        for _, batches, _ in jobs
    }

    def local(device: int, batches: list[Any], weight: Any, bias: Any) -> tuple[Any, Any]:
        x, y = population.train.of(device)
        order, sizes = orders[id(batches)]
        new_weight, new_bias = _apart(weight), _apart(bias)
        scratch = _apart(np.empty(classes * features + classes, np.float32))
        solve(
            *(pointer(array) for array in (x, y, order, sizes)),
            len(sizes),
            features,
            classes,
            ctypes.c_float(LEARNING_RATE),
            ctypes.c_float(MU),
            *(pointer(array) for array in (weight, bias, new_weight, new_bias, scratch)),
        )
        return new_weight.reshape(weight.shape), new_bias

    threads = Workers(workers)  # ctypes runs C without Python's lock
    return lambda: work.by_hand(local, threads)


def _apart(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a flat copy that shares no cache line with what another thread writes."""
    line = 32  # numbers, two lines of 64 bytes
    return np.pad(array.ravel(), line)[line:-line]


def numpy_loop(work: Work) -> Callable[[], tuple[Seconds, Any]]:
    rate, mu = np.float32(LEARNING_RATE), np.float32(MU)

    def local(device: int, batches: list[Any], weight: Any, bias: Any) -> tuple[Any, Any]:
        x, y = work.population.train.of(device)
        w, b = weight, bias
        for rows in batches:
            xs, ys = x[rows], y[rows]
            scores = xs @ w.T + b
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
            scores[np.arange(len(rows)), ys] -= 1
            scores /= len(rows)
            w = w - rate * (scores.T @ xs + mu * (w - weight))
            b = b - rate * (scores.sum(axis=0) + mu * (b - bias))
        return w, b

    return lambda: work.by_hand(local)


def torch_loop(work: Work) -> Callable[[], tuple[Seconds, Any]] | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    classes, features = work.population.classes, work.population.shape[0]
    layer = torch.nn.Linear(features, classes)
    loss_of = torch.nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE)

    def local(device: int, batches: list[Any], weight: Any, bias: Any) -> tuple[Any, Any]:
        x, y = (torch.from_numpy(np.array(part)) for part in work.population.train.of(device))
        y = y.long()
        shuffled = [(x[rows], y[rows]) for rows in map(torch.from_numpy, batches)]
        anchors = [torch.from_numpy(weight.copy()), torch.from_numpy(bias.copy())]
        with torch.no_grad():
            for parameter, anchor in zip(layer.parameters(), anchors, strict=True):
                parameter.copy_(anchor)
        begin = time.perf_counter()
        for xs, ys in shuffled:
            optimiser.zero_grad()
            loss = loss_of(layer(xs), ys)
            for parameter, anchor in zip(layer.parameters(), anchors, strict=True):
                loss = loss + MU / 2 * ((parameter - anchor) ** 2).sum()
            loss.backward()
            optimiser.step()
        spent[0] += time.perf_counter() - begin
        return layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()

    spent = [0.0]

    def run() -> tuple[Seconds, Any]:
        spent[0] = 0.0
        _, weight = work.by_hand(local)
        return np.array(spent), weight

    return run


def compete(work: Work, turns: int) -> dict[str, float]:
    """Return the best microseconds per step of every contender."""
    contenders: dict[str, Callable[[], tuple[Seconds, Any]] | None] = {
        "fedprox, one core": lambda: ours(work),
        "C, plain loops": c_loop(work),
        "NumPy loop": numpy_loop(work),
        "PyTorch, eager": torch_loop(work),
        "FedJAX": fedjax_rounds(work),
        "pfl": pfl_rounds(work),
    }
    best: dict[str, float] = {}
    for turn in range(turns):
        for name, run in contenders.items():
            if run is None or (turn > 1 and name in SLOW):
                continue
            seconds, weight = run()
            if name not in PEERS:
                np.testing.assert_allclose(weight, work.final["weight"], rtol=2e-3, atol=2e-4)  # they do the same work
            best[name] = min(best.get(name, np.inf), float(np.sum(seconds)) / work.steps * 1e6)
    return best


def two_cores(work: Work, turns: int) -> tuple[float, float, float]:
    """Return the speed-up of two cores for us and for the C loop, and what the largest device of a round allows.

    All three are means over the rounds, and each round of a contender counts with the best of its turns.
    """
    c_one, c_two = c_loop(work, 1), c_loop(work, 2)
    contenders = [lambda: ours(work, 1)[0], lambda: ours(work, 2)[0], lambda: c_one()[0], lambda: c_two()[0]]
    best = np.full((len(contenders), work.rounds), np.inf)
    for _ in range(turns):
        best = np.minimum(best, [run() for run in contenders])
    allowed = []
    for jobs in work.jobs:
        steps = [len(batches) for _, batches, _ in jobs]
        allowed.append(sum(steps) / max(sum(steps) / 2, *steps))
    return float(np.mean(best[0] / best[1])), float(np.mean(best[2] / best[3])), float(np.mean(allowed))


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.speed", description="Microseconds per local step.")
    options.add_argument("--rounds", type=int, default=10, help="rounds of each work (default 10)")
    options.add_argument("--turns", type=int, default=6, help="turns of each contender (default 6; the slow ones 2)")
    chosen = options.parse_args()
    works = [
        Work("W1: 60 features", synthetic(1.0, 1.0, seed=12), chosen.rounds),
        Work("W2: 784 features", mnist_like(), chosen.rounds),
    ]
    print(f"{platform.machine()}, {processor()}, {os.cpu_count()} cores; {', '.join(versions())}.")
    print(f"{chosen.rounds} rounds; " + "; ".join(f"{w.name}, {w.steps / w.rounds:.0f} steps per round" for w in works))
    everywhere = os.sched_getaffinity(0)
    rows: dict[str, list[str]] = {}
    for work in works:
        stay_on({min(everywhere)})
        best = compete(work, chosen.turns)
        stay_on(everywhere)
        for name, microseconds in best.items():
            ratio = microseconds / best["fedprox, one core"]
            rows.setdefault(name, []).append(f"{microseconds:.2f} ({ratio:.2f} x)")
    print("\n| contender | " + " | ".join(f"{work.name}: us per step (relative)" for work in works) + " |")
    print("|---|" + "---|" * len(works))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| two cores | speed-up | allowed by the largest device | share | the C loop's speed-up | its share |")
    print("|---|---|---|---|---|---|")
    for work in works:
        reached, c_reached, allowed = two_cores(work, TWO_CORE_TURNS * chosen.turns)
        shares = reached / allowed, c_reached / allowed
        print(f"| {work.name} | {reached:.2f} | {allowed:.2f} | {shares[0]:.0%} | {c_reached:.2f} | {shares[1]:.0%} |")


def stay_on(cores: set[int]) -> None:
    """Keep every thread of this process on these cores, also those that libraries have started."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def versions() -> list[str]:
    """Return the versions of the packages that are measured, where installed."""
    found = []
    for package in ("fedprox", "jax", "numpy", "torch", "fedjax", "pfl"):
        try:
            found.append(f"{package} {fedprox.__version__ if package == 'fedprox' else version(package)}")
        except PackageNotFoundError:
            continue
    return found


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
