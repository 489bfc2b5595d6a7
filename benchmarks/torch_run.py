"""A whole run with an own PyTorch module, beside a loop written by hand that does and measures the same.

    python -m benchmarks.torch_run [--turns 3] [--rounds 2]

The module is the CNN of `docs/own-model.md`; the data are 5,000 images of MNIST, divided over ten devices by
Dirichlet(0.5), and 1,000 for the test. Both train with FedProx (all devices, E = 1, mini-batches of 32, SGD), and
measure before the first round and after each: loss and accuracy on the training data, accuracy on the test data, and
in the second row the gradient of every device too, for the dissimilarity. One core, in turns, the best turn counts.
Processor time is given, which is the wall time of a quiet core. Needs MNIST (`fedprox data prepare mnist`).
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import fedprox
from benchmarks.networks import best
from benchmarks.tables import heading, line
from fedprox.adapters.torch import from_torch
from fedprox.config import Config, recipes
from fedprox.core.compilation import prepare
from fedprox.data import load
from fedprox.population import Population
from fedprox.population.partition import by_dirichlet

MU, RATE, BATCH, DEVICES, TRAIN, TEST = 0.1, 0.05, 32, 10, 5000, 1000


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)),
    )


def images() -> Population:
    mnist = load(Config.from_dict(recipes.load_settings("mnist")))
    rows = TRAIN + TEST
    x, y = np.asarray(mnist.train.x[:rows]), np.asarray(mnist.train.y[:rows])
    return Population.from_arrays(x, y, by_dirichlet(y, DEVICES, 0.5), test=np.arange(rows) % (rows // TEST) == 0)


def ours(data: Population, rounds: int, gradients: bool) -> float:
    """Return the processor time of a run through `fedprox.train`, from the first measuring to the last."""
    config = {
        "rounds": rounds,
        "method": {"mu": MU},
        "solver": {"learning_rate": RATE, "batch_size": BATCH, "epochs": 1},
        "devices": {"per_round": DEVICES},
        "measure": {"dissimilarity": gradients},
        "engine": {"workers": 1},
    }
    model, solver = from_torch(network())
    begin = time.process_time()
    fedprox.train(config, population=data, model=model, solver=solver)
    return time.process_time() - begin


def by_hand(data: Population, rounds: int, gradients: bool) -> float:
    """Return the processor time of the same run, as a researcher writes it."""
    begin = time.process_time()
    module, devices = network(), tensors(data.train)
    measure(module, devices, tensors(data.test), gradients)
    for _ in range(rounds):
        anchor = [each.detach().clone() for each in module.parameters()]
        total = [torch.zeros_like(each) for each in anchor]
        for x, y in devices:
            with torch.no_grad():
                for parameter, start in zip(module.parameters(), anchor, strict=True):
                    parameter.copy_(start)
            train(module, anchor, x, y)
            for so_far, parameter in zip(total, module.parameters(), strict=True):
                so_far.add_(parameter.detach(), alpha=len(y) / len(data.train))
        with torch.no_grad():
            for parameter, mean in zip(module.parameters(), total, strict=True):
                parameter.copy_(mean)
        measure(module, devices, tensors(data.test), gradients)
    return time.process_time() - begin


def tensors(samples: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    ranges = zip(samples.offsets[:-1], samples.offsets[1:], strict=True)
    x, y = torch.from_numpy(np.array(samples.x)), torch.from_numpy(np.array(samples.y)).long()
    return [(x[begin:end], y[begin:end]) for begin, end in ranges]


def train(module: nn.Module, anchor: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> None:
    """Train for an epoch on a device."""
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    module.train()
    for rows in torch.randperm(len(y)).split(BATCH):
        optimiser.zero_grad()
        proximal = sum(((w - a) ** 2).sum() for w, a in zip(module.parameters(), anchor, strict=True))
        (nn.functional.cross_entropy(module(x[rows]), y[rows]) + 0.5 * MU * proximal).backward()
        optimiser.step()


def measure(module: nn.Module, devices: Any, test: Any, gradients: bool) -> tuple[float, ...]:
    """Return training loss, both accuracies and, with gradients, the mean squared norm of the devices' gradients."""
    module.eval()
    loss, correct, norms2, samples = 0.0, 0, 0.0, 0
    for x, y in devices:
        of_device = [torch.zeros_like(each) for each in module.parameters()]
        with torch.set_grad_enabled(gradients):
            for xs, ys in zip(x.split(100), y.split(100), strict=True):
                outputs = module(xs)
                value = nn.functional.cross_entropy(outputs, ys, reduction="sum")
                if gradients:
                    for so_far, more in zip(
                        of_device, torch.autograd.grad(value, list(module.parameters())), strict=True
                    ):
                        so_far.add_(more)
                loss += value.item()
                correct += int((outputs.argmax(1) == ys).sum())
        norms2 += sum(float(each.square().sum()) for each in of_device) / len(y)
        samples += len(y)
    with torch.no_grad():
        hits = [module(xs).argmax(1) == ys for x, y in test for xs, ys in zip(x.split(100), y.split(100), strict=True)]
    return loss / samples, correct / samples, float(torch.cat(hits).float().mean()), norms2 / samples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    prepare()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    data = images()
    ours(data, 1, True)  # what is compiled and loaded once
    rows = heading("measured", "fedprox.train, s", "by hand", "ratio")
    for what, gradients in (("loss and accuracies", False), ("and every device's gradient", True)):
        mine, other = best(
            [partial(ours, data, options.rounds, gradients), partial(by_hand, data, options.rounds, gradients)],
            options.turns,
        )
        rows.append(line(what, f"{mine:.2f}", f"{other:.2f}", f"{mine / other:.2f}"))
        print(rows[-1], flush=True)
    print("\n".join(["", *rows]))


if __name__ == "__main__":
    main()
