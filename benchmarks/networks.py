"""Networks: microseconds per local step and milliseconds to measure, beside an eager PyTorch loop.

    python -m benchmarks.networks [--turns 3] [--models cnn,mlp] [--compile]
    python -m benchmarks.networks --samples 37,211,90,174 [--models char_lstm]
    python -m benchmarks.networks --cores [--models cnn,mlp]

A step is a mini-batch of SGD with the proximal term. Ours is taken end to end through `fedprox.train` (sampling,
mini-batch orders, local loops, merging); PyTorch's is the loop that a researcher writes: shuffled tensors, the proximal
term as part of the loss, `torch.optim.SGD`. Measuring is loss and accuracy over all samples, then these with the
gradient of every device; PyTorch's takes batches of 100, and one batch per device for the gradients. All on one core,
in turns, and the best turn counts. Processor time is given, which is the wall time of a quiet core. What is printed is
Markdown, for `benchmarks/README.md`. `--compile` adds PyTorch's compiled module. With `--samples`, the numbers of
samples of the devices, only measuring is compared.

`--cores` compares rounds of ten equal devices on one core, with one worker, and on two, with two. XLA divides the
operations of a single program over its own threads too, so that one worker alone is not kept to one core: all threads
are. Speed-up is by wall-clock time, which is of use on a quiet machine only. Beside it stands the processor time of two
cores over that of one: what is above 1 is lost to shared caches and waiting, whatever else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import fedprox
from benchmarks.tables import heading, line
from benchmarks.torch_networks import Characters, Sentiment, Transformer, convolutions, lenet, mcmahan, resnet
from fedprox.core.compilation import prepare
from fedprox.core.threads import Workers
from fedprox.core.trees import to_numpy
from fedprox.measures import Measurer
from fedprox.models import Model, build
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples

MU, RATE = 0.1, 0.01


@dataclass(frozen=True)
class Case:
    """A model of ours, its counterpart, and an example's shape."""

    model: str
    shape: tuple[int, ...]
    torch: Callable[[], nn.Module]
    batches: tuple[int, ...] = (10, 32)
    classes: int = 10
    samples: tuple[int, ...] = (128,) * 4  # of each device: batches of 32 and 64 are full

    @property
    def name(self) -> str:
        return f"{self.model}, {' x '.join(map(str, self.shape))}"

    def build(self) -> Model:
        """Return our model."""
        if self.model == "sentiment_lstm":
            vectors = np.random.default_rng(1).normal(size=(_WORDS, 300))
            return build(self.model, self.shape, self.classes, vectors=vectors)
        return build(self.model, self.shape, self.classes)


_WORDS = 80  # and characters


CASES = [
    Case("mlp", (784,), lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), samples=(1280,) * 4),
    Case("cnn", (28, 28), lambda: convolutions(1, 28)),
    Case("cnn", (32, 32, 3), lambda: convolutions(3, 32)),
    Case("lenet", (32, 32, 3), lambda: lenet(3, 32), batches=(10, 32, 64)),
    Case("mcmahan_cnn", (28, 28), lambda: mcmahan(1, 28)),
    Case("resnet8", (32, 32, 3), lambda: resnet(1)),
    Case("resnet20", (32, 32, 3), lambda: resnet(3)),
    Case("char_lstm", (80,), Characters, classes=80),
    Case("sentiment_lstm", (25,), Sentiment, classes=2),
    Case("char_transformer", (80,), Transformer, classes=80),
]
TEXT = ("char_lstm", "sentiment_lstm", "char_transformer")


def population(case: Case) -> Population:
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(case.samples)), case.samples)
    is_text = case.model in TEXT
    shape = (len(owner), *case.shape)
    x = random.integers(0, _WORDS, shape) if is_text else random.normal(size=shape).astype(np.float32)
    y = random.integers(0, case.classes, len(owner))
    y[0] = case.classes - 1
    return Population.from_arrays(x, y, owner, test=np.zeros(len(owner), bool))


def ours(model: Model, data: Population, batch: int) -> float:
    """Return the processor time per step of whole rounds."""
    return seconds_per_step(model, data, batch, 1, time.process_time)


def on_cores(cores: set[int], model: Model, data: Population) -> NDArray[np.float64]:
    """Return wall-clock and processor time per step of whole rounds, with as many workers as cores."""
    before = os.sched_getaffinity(0)
    move_threads(cores)
    try:
        return seconds_per_step(model, data, 32, len(cores), both_clocks)
    finally:
        move_threads(before)


def both_clocks() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])


def move_threads(cores: set[int]) -> None:
    """Have all threads of this process run on these cores, and those that they start."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def seconds_per_step(model: Model, data: Population, batch: int, workers: int, clock: Callable[[], Any]) -> Any:
    """Return the time per step; the first round, and the last one, which is measured, are left out."""
    moments: list[Any] = []
    config = {
        "rounds": 4,
        "method": {"mu": MU},
        "solver": {"learning_rate": RATE, "batch_size": batch, "epochs": 1},
        "devices": {"per_round": data.devices},
        "measure": {"every": 10**6, "dissimilarity": False},
        "engine": {"workers": workers},
    }

    def tell(progress: Any) -> None:
        moments.append(clock())

    rounds = fedprox.train(config, population=data, model=model, callbacks=[tell]).devices
    return (moments[3] - moments[1]) / sum(sum(row["steps"]) for row in rounds[1:3])


def tensors(case: Case, data: Population) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.from_numpy(data.train.x)
    if len(case.shape) > 1:
        depth = case.shape[2] if len(case.shape) == 3 else 1
        x = x.reshape(len(x), *case.shape[:2], depth).permute(0, 3, 1, 2).contiguous()
    return x.long() if case.model in TEXT else x, torch.from_numpy(data.train.y).long()


def eager(case: Case, data: Population, batch: int, module: nn.Module | None = None) -> float:
    """Return the seconds per step of an epoch in PyTorch, as it is written by hand."""
    x, y = tensors(case, data)
    module, loss = module or case.torch(), nn.CrossEntropyLoss()
    anchor = [parameter.detach().clone() for parameter in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    rows = torch.arange(case.samples[0])
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
    sizes = list(case.samples) if gradients else 100

    def measure() -> float:
        begin = time.process_time()
        with torch.set_grad_enabled(gradients):
            for xs, ys in zip(x.split(sizes), y.split(sizes), strict=True):
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


def compiled(case: Case, data: Population, batch: int) -> Callable[[], float] | None:
    """Return PyTorch's loop with a compiled module, after one epoch for compiling; None where it does not work."""
    try:
        module = torch.compile(case.torch(), dynamic=False)
        eager(case, data, batch, module)
    except Exception as error:  # whatever the compiler lacks on this machine
        print(f"torch.compile: {case.model} is left out: {type(error).__name__}")
        return None
    return partial(eager, case, data, batch, module)


def compare_cores(cases: list[Case], turns: int) -> None:
    """Print how much faster rounds of ten equal devices are on two cores than on one, batch 32."""
    rows = heading("model, example", "one core, ms per step", "two cores", "speed-up", "processor time, two / one")
    two_cores = set(sorted(os.sched_getaffinity(0))[-2:])
    jax.devices()  # its threads are as many as the cores that it finds when it starts
    for case in cases:
        tenths = np.array_split(np.arange(sum(case.samples)), 10)
        data, model = population(replace(case, samples=tuple(map(len, tenths)))), case.build()
        contenders = [partial(on_cores, cores, model, data) for cores in ({max(two_cores)}, two_cores)]
        times = np.array([[each() for each in contenders] for _ in range(turns)])  # turn, cores, clock
        (one, used), (two, used_by_two) = times.min(axis=0)
        cells = (f"{one * 1e3:.2f}", f"{two * 1e3:.2f}", f"{one / two:.2f}", f"{used_by_two / used:.2f}")
        rows.append(line(case.name, *cells))
        print(rows[-1], flush=True)
    print("\n".join(["", *rows]))


def compare_steps(cases: list[Case], turns: int, *, with_compiled: bool) -> None:
    """Print the table of steps."""
    also = ("torch.compile", "ratio") if with_compiled else ()
    rows = heading("model, example", "batch", "fedprox, us per step", "PyTorch eager", "ratio", *also)
    for case in cases:
        data, model = population(case), case.build()
        for batch in case.batches:
            theirs = [partial(eager, case, data, batch), compiled(case, data, batch) if with_compiled else None]
            contenders = [partial(ours, model, data, batch), *(each for each in theirs if each is not None)]
            mine, *others = best(contenders, turns)
            cells = [cell for other in others for cell in (f"{other * 1e6:,.0f}", f"{mine / other:.2f}")]
            rows.append(line(case.name, str(batch), f"{mine * 1e6:,.0f}", *cells))
            print(rows[-1], flush=True)
    print("\n".join(["", *rows]))


def compare_measuring(cases: list[Case], turns: int) -> None:
    """Print the table of measuring."""
    rows = heading("model, example", "samples", "what", "fedprox, ms", "PyTorch eager", "ratio")
    for case in cases:
        data, model = population(case), case.build()
        for what, gradients in (("loss and accuracy", False), ("with all gradients", True)):
            mine, other = best(
                [our_measures(model, data, gradients=gradients), eager_measures(case, data, gradients=gradients)],
                turns + 1,
            )
            cells = (f"{mine * 1e3:,.1f}", f"{other * 1e3:,.1f}", f"{mine / other:.2f}")
            rows.append(line(case.name, f"{sum(case.samples):,}", what, *cells))
            print(rows[-1], flush=True)
    print("\n".join(["", *rows]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", default="")
    parser.add_argument("--samples", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cores", action="store_true")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.models or case.model in options.models.split(",")]
    prepare()
    torch.set_num_threads(1)
    if options.cores:
        compare_cores(chosen, options.turns)
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.samples:
        samples = tuple(map(int, options.samples.split(",")))
        chosen = [replace(case, samples=samples) for case in chosen]
    else:
        compare_steps(chosen, options.turns, with_compiled=options.compile)
    compare_measuring(chosen, options.turns)


if __name__ == "__main__":
    main()
