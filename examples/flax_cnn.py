"""Federated training of an unmodified Flax CNN (NNX).

pip install 'fedprox[flax]'
python examples/flax_cnn.py
"""

from __future__ import annotations

import jax
from flax import nnx
from images import CLASSES, SIDE, bars

import fedprox
from fedprox.adapters.flax import from_nnx


class CNN(nnx.Module):
    """One convolution and a dense layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.convolution = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.output = nnx.Linear(8 * (SIDE // 2) ** 2, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the scores of images (examples, 1, side, side)."""
        image = nnx.relu(self.convolution(x.transpose(0, 2, 3, 1)))
        return self.output(nnx.max_pool(image, (2, 2), (2, 2)).reshape(len(x), -1))


def main(rounds: int = 8) -> float:
    """Train with Adam on the devices and return the test accuracy."""
    config = {
        "rounds": rounds,
        "method": {"name": "fedprox", "mu": 0.1},
        "solver": {"name": "adam", "epochs": 3, "learning_rate": 0.003},
        "devices": {"per_round": 6, "stragglers": 0.5},
    }
    result = fedprox.train(config, population=bars(), model=from_nnx(CNN))
    for row in result.history:
        print(f"round {row['round']}: loss {row['train_loss']:.3f}, test accuracy {row['test_accuracy']:.1%}")
    return float(result.history[-1]["test_accuracy"])


if __name__ == "__main__":
    main()
