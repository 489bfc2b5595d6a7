"""Federated training of an unmodified Equinox module.

pip install 'fedprox[equinox]'
python examples/equinox_mlp.py
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from images import CLASSES, SIDE, bars

import fedprox
from fedprox.adapters.equinox import from_equinox


def network(key: jax.Array) -> eqx.Module:
    """Return a multilayer perceptron on flattened images."""
    mlp = eqx.nn.MLP(SIDE * SIDE, CLASSES, width_size=32, depth=1, key=key)
    return eqx.nn.Sequential([eqx.nn.Lambda(jnp.ravel), mlp])


def main(rounds: int = 8) -> float:
    """Train with L-BFGS on the devices and return the test accuracy."""
    config = {
        "rounds": rounds,
        "method": {"name": "fedprox", "mu": 0.1},
        "solver": {"name": "lbfgs", "epochs": 10},
        "devices": {"per_round": 6, "stragglers": 0.5},
    }
    result = fedprox.train(config, population=bars(), model=from_equinox(network))
    for row in result.history:
        print(f"round {row['round']}: loss {row['train_loss']:.3f}, test accuracy {row['test_accuracy']:.1%}")
    return float(result.history[-1]["test_accuracy"])


if __name__ == "__main__":
    main()
