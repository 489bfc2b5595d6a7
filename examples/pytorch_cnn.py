"""Federated training of a PyTorch CNN, from start to end.

pip install 'fedprox[torch]'
python examples/pytorch_cnn.py
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from images import CLASSES, SIDE, bars
from torch import nn

import fedprox
from fedprox.adapters.torch import from_torch


def cnn() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 4) ** 2, CLASSES),
    )


def main(rounds: int = 8) -> float:
    """Train with half of the devices as stragglers, load the model into PyTorch, and return its test accuracy."""
    torch.manual_seed(0)
    model, solver = from_torch(cnn(), optimiser=partial(torch.optim.SGD, momentum=0.9))
    config = {
        "rounds": rounds,
        "method": {"name": "fedprox", "mu": 0.1},
        "solver": {"epochs": 3, "learning_rate": 0.02},
        "devices": {"per_round": 6, "stragglers": 0.5},
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = fedprox.train(config, population=bars(), model=model, solver=solver, out=out)
        for row in result.history:
            print(f"round {row['round']}: loss {row['train_loss']:.3f}, test accuracy {row['test_accuracy']:.1%}")
        trained = cnn()
        trained.load_state_dict(safetensors.torch.load_file(out / "model.safetensors"))
    test = bars().test
    with torch.no_grad():
        labels = trained(torch.from_numpy(test.x)).argmax(1).numpy()
    accuracy = float((labels == test.y).mean())
    print(f"the same model, loaded into PyTorch: test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
