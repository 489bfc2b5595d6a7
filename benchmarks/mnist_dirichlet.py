"""MNIST divided over devices in Dirichlet shares of each class, as data that `benchmarks.auto_mu` takes.

    python -m benchmarks.mnist_dirichlet --alpha 0.1 --out runs/unseen
    python -m benchmarks.auto_mu --data runs/unseen/mnist-dirichlet-0.1.toml

Needs the prepared MNIST (`fedprox data prepare mnist`), whose images it divides anew. The smaller alpha, the fewer
classes a device has. Rounds and learning rate are those of the MNIST recipe.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedprox.config import Config, recipes
from fedprox.data import load
from fedprox.population.partition import by_dirichlet


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mnist_dirichlet", description=__doc__.splitlines()[0])
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    settings = recipes.load_settings("mnist")
    mnist = load(Config.from_dict(settings))
    x = np.concatenate([mnist.train.x, mnist.test.x])
    y = np.concatenate([mnist.train.y, mnist.test.y])
    device = by_dirichlet(y, options.devices, options.alpha, options.seed)
    name = f"mnist-dirichlet-{options.alpha:g}"
    options.out.mkdir(parents=True, exist_ok=True)
    data = (options.out / f"{name}.npz").resolve()
    np.savez(data, x=x, y=y, device=device)
    settings["data"] = {"name": "npz", "path": str(data)}
    config = options.out / f"{name}.toml"
    config.write_text(Config.from_dict(settings).to_toml())
    print(config)


if __name__ == "__main__":
    main()
