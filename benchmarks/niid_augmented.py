"""The CIFAR-10 setting of the NIID benchmark with the augmentation of its published code, which the recipe leaves out.

    python -m benchmarks.niid_augmented [--out runs/niid-augmented] [--methods fedavg,fedprox,…] [--mu 0.01]

The benchmark's description (Li et al., 2022) does not name an augmentation; its code pads training images by four
reflected pixels, takes a random part of 32 x 32 and mirrors half of them. All else is that of the recipe `niid-bench`.
The network is LeNet as a PyTorch module, and the augmentation the `transform` of `from_torch`, which draws for (seed,
round, device). A run that was interrupted resumes. Needs CIFAR-10 (`fedprox data prepare cifar10`).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import nn

import fedprox
from benchmarks.tables import heading, line
from benchmarks.torch_networks import lenet
from fedprox.adapters.torch import from_torch
from fedprox.config import recipes

PAD, SIDE = 4, 32


class ChannelsFirst(nn.Module):
    """Takes images of (examples, height, width, channels), as the data set has them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 3, 1, 2)


def augmented(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a random part of each padded image, mirrored with probability 1 / 2."""
    count = len(x)
    padded = nn.functional.pad(x.permute(0, 3, 1, 2), (PAD,) * 4, mode="reflect").permute(0, 2, 3, 1)
    down, across = torch.randint(0, 2 * PAD + 1, (2, count, 1), generator=generator)
    is_mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = down + torch.arange(SIDE)
    columns = across + torch.where(is_mirrored, torch.arange(SIDE).flip(0), torch.arange(SIDE))
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def run(method: dict[str, object], out: Path, seed: int) -> fedprox.Result:
    torch.manual_seed(seed)
    optimiser = partial(torch.optim.SGD, momentum=0.9)
    model, solver = from_torch(nn.Sequential(ChannelsFirst(), lenet(3, SIDE)), None, optimiser, transform=augmented)
    recipe = recipes.load_settings("niid-bench")
    shared = {section: recipe[section] for section in ("rounds", "data", "devices", "measure", "checkpoint")}
    local = {**recipe["solver"], "momentum": 0.0}  # the optimiser has it
    config = {**shared, "solver": local, "method": method, "seed": seed, "engine": {"workers": 1}}
    return fedprox.train(config, model=model, solver=solver, out=out, resume=out.exists(), progress=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/niid-augmented"))
    parser.add_argument("--methods", default="fedavg,fedprox")
    parser.add_argument("--mu", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("\n".join(heading("method", "best test accuracy", "in round", "after the last round", "training loss")))
    for name in arguments.methods.split(","):
        method = {"name": name, **({"mu": arguments.mu} if name == "fedprox" else {})}
        history = run(method, arguments.out / name, arguments.seed).history
        best = max(history, key=lambda row: row["test_accuracy"])
        shares = [f"{row['test_accuracy']:.1%}" for row in (best, history[-1])]
        print(line(name, shares[0], str(best["round"]), shares[1], f"{history[-1]['train_loss']:.3f}"), flush=True)


if __name__ == "__main__":
    main()
