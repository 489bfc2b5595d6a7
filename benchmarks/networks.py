"""Networks: microseconds per local step and milliseconds to measure, beside an eager PyTorch loop.

    python -m benchmarks.networks [--turns 3] [--models cnn,mlp]

A step is a mini-batch of SGD with the proximal term. Ours is taken end to end through `fedprox.train` (sampling,
mini-batch orders, local loops, merging); PyTorch's is the loop that a researcher writes: shuffled tensors, the proximal
term as part of the loss, `torch.optim.SGD`. Measuring is loss and accuracy over all samples, then these with the
gradient of every device; PyTorch's takes batches of 100, and one batch per device for the gradients. All on one core,
in turns, and the best turn counts. Processor time is given, which is the wall time of a quiet core. What is printed is
Markdown, for `benchmarks/README.md`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

import fedprox
from benchmarks.tables import heading, line
from fedprox.core.compilation import prepare
from fedprox.core.errors import FedProxError
from fedprox.core.threads import Workers
from fedprox.core.trees import to_numpy
from fedprox.measures import Measurer
from fedprox.models import Model, build
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples

MU, RATE, DEVICES = 0.1, 0.01, 4


def convolutions(depth: int, side: int) -> nn.Module:
    """Return the built-in CNN: 5 x 5 convolutions with 16 and 32 channels."""
    return nn.Sequential(
        *(nn.Conv2d(depth, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 10)),
    )


def lenet(depth: int, side: int) -> nn.Module:
    """Return the CNN of the NIID benchmark."""
    return nn.Sequential(
        *(nn.Conv2d(depth, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * ((side - 12) // 4) ** 2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def mcmahan(depth: int, side: int) -> nn.Module:
    """Return the CNN of McMahan et al. (2017)."""
    return nn.Sequential(
        *(nn.Conv2d(depth, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * (side // 4) ** 2, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


class Characters(nn.Module):
    """The built-in character LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 100, num_layers=2, batch_first=True)
        self.output = nn.Linear(100, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embedding(x))
        scores: torch.Tensor = self.output(outputs[:, -1])
        return scores


@dataclass(frozen=True)
class Case:
    """A model of ours, its counterpart, and an example's shape."""

    model: str
    shape: tuple[int, ...]
    torch: Callable[[], nn.Module]
    batches: tuple[int, ...] = (10, 32)
    classes: int = 10
    samples: int = 400


CASES = [
    Case("mlp", (784,), lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), samples=4000),
    Case("cnn", (28, 28), lambda: convolutions(1, 28)),
    Case("cnn", (32, 32, 3), lambda: convolutions(3, 32)),
    Case("lenet", (32, 32, 3), lambda: lenet(3, 32), batches=(10, 32, 64)),
    Case("mcmahan_cnn", (28, 28), lambda: mcmahan(1, 28)),
    Case("char_lstm", (80,), Characters, classes=80),
]


def population(case: Case) -> Population:
    random = np.random.default_rng(0)
    owner = np.arange(case.samples) % DEVICES
    is_text = case.model == "char_lstm"
    shape = (case.samples, *case.shape)
    x = random.integers(0, 80, shape) if is_text else random.normal(size=shape).astype(np.float32)
    y = random.integers(0, case.classes, case.samples)
    y[0] = case.classes - 1
    return Population.from_arrays(x, y, owner, test=np.zeros(case.samples, bool))


def ours(model: Model, data: Population, batch: int) -> float:
    """Return the seconds per step of whole rounds; the first one and the last, which is measured, are left out."""
    moments: list[float] = []
    config = {
        "rounds": 4,
        "method": {"mu": MU},
        "solver": {"learning_rate": RATE, "batch_size": batch, "epochs": 1},
        "devices": {"per_round": DEVICES},
        "measure": {"every": 10**6, "dissimilarity": False},
        "engine": {"workers": 1},
    }

    def tell(progress: Any) -> None:
        moments.append(time.process_time())

    rounds = fedprox.train(config, population=data, model=model, callbacks=[tell]).devices
    return (moments[3] - moments[1]) / sum(sum(row["steps"]) for row in rounds[1:3])


def tensors(case: Case, data: Population) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.from_numpy(data.train.x)
    if len(case.shape) > 1:
        depth = case.shape[2] if len(case.shape) == 3 else 1
        x = x.reshape(len(x), *case.shape[:2], depth).permute(0, 3, 1, 2).contiguous()
    return x.long() if case.model == "char_lstm" else x, torch.from_numpy(data.train.y).long()


def eager(case: Case, data: Population, batch: int) -> float:
    """Return the seconds per step of an epoch in PyTorch, as it is written by hand."""
    x, y = tensors(case, data)
    module, loss = case.torch(), nn.CrossEntropyLoss()
    anchor = [parameter.detach().clone() for parameter in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    rows = torch.arange(len(y) // DEVICES)
    begin, steps = time.process_time(), 0
    for chosen in rows[torch.randperm(len(rows))].split(batch):
        optimiser.zero_grad()
        proximal = sum(((w - a) ** 2).sum() for w, a in zip(module.parameters(), anchor, strict=True))
        (loss(module(x[chosen]), y[chosen]) + 0.5 * MU * proximal).backward()
        optimiser.step()
        steps += 1
    return (time.process_time() - begin) / steps


def our_measures(model: Model, data: Population, *, gradients: bool) -> Callable[[], float]:
    params = to_numpy(model.init(jax.random.key(0)))
    measurer = Measurer(data, LoadedSamples.of(data.train, model), model, Workers(1), gradients=gradients)
    measurer.compile(params)

    def measure() -> float:
        begin = time.process_time()
        measurer.measure(params)
        return time.process_time() - begin

    return measure


def eager_measures(case: Case, data: Population, *, gradients: bool) -> Callable[[], float]:
    x, y = tensors(case, data)
    module = case.torch().eval()
    size = len(y) // DEVICES if gradients else 100

    def measure() -> float:
        begin = time.process_time()
        with torch.set_grad_enabled(gradients):
            for xs, ys in zip(x.split(size), y.split(size), strict=True):
                outputs = module(xs)
                loss = nn.functional.cross_entropy(outputs, ys, reduction="sum")
                (outputs.argmax(1) == ys).sum().item()
                if gradients:
                    torch.autograd.grad(loss, list(module.parameters()))
        return time.process_time() - begin

    return measure


def best(contenders: list[Callable[[], float]], turns: int) -> list[float]:
    """Let contenders take turns, and return the best turn of each."""
    times = [[each() for each in contenders] for _ in range(turns)]
    return [min(column) for column in zip(*times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", default="")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    prepare()
    torch.set_num_threads(1)
    chosen = [case for case in CASES if not options.models or case.model in options.models.split(",")]
    steps = heading("model, example", "batch", "fedprox, us per step", "PyTorch eager", "ratio")
    passes = heading("model, example", "samples", "what", "fedprox, ms", "PyTorch eager", "ratio")
    for case in chosen:
        data = population(case)
        try:
            model = build(case.model, case.shape, case.classes)
        except FedProxError as error:
            print(f"{case.model} is left out: {error}")
            continue
        name = f"{case.model}, {' x '.join(map(str, case.shape))}"
        for batch in case.batches:
            mine, theirs = best([partial(ours, model, data, batch), partial(eager, case, data, batch)], options.turns)
            steps.append(line(name, str(batch), f"{mine * 1e6:,.0f}", f"{theirs * 1e6:,.0f}", f"{mine / theirs:.2f}"))
            print(steps[-1], flush=True)
        for what, gradients in (("loss and accuracy", False), ("with all gradients", True)):
            mine, theirs = best(
                [our_measures(model, data, gradients=gradients), eager_measures(case, data, gradients=gradients)],
                options.turns + 1,
            )
            row = (f"{mine * 1e3:,.1f}", f"{theirs * 1e3:,.1f}", f"{mine / theirs:.2f}")
            passes.append(line(name, f"{case.samples:,}", what, *row))
            print(passes[-1], flush=True)
    print("\n".join(["", *steps, "", *passes]))


if __name__ == "__main__":
    main()
