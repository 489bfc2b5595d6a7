"""What a round sends over the network, in bytes per device.

Down goes the model w^t and what the method adds to it, up goes the device's reply. The sizes are those of the trees
that `Method.send` and `Method.reply` really give, so that SCAFFOLD's control variates or FedDANE's gradients count.
They do not change over the rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from fedprox.methods import Method, Solution
from fedprox.solvers import Solver
from fedprox.trees import Tree

__all__ = ["Traffic", "bytes_of", "traffic_of"]


@dataclass(frozen=True)
class Traffic:
    """What one device sends and receives in a round, and what it computes beside its budget."""

    down: int  # bytes
    up: int  # bytes
    messages: int = 2  # in both directions together; each takes the network's latency
    passes: int = 0  # over all local samples, for gradients at w^t


def bytes_of(tree: Tree) -> int:
    """Return the bytes of all arrays of a tree.

    >>> bytes_of({"weight": np.zeros((10, 60), np.float32), "bias": np.zeros(10, np.float32)})
    2440
    """
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))


def traffic_of(method: Method, params: Tree, solver: Solver, *, learning_rate: float) -> Traffic:
    """Return the traffic of a method, found by letting it send and reply once.

    FedDANE gathers gradients first: another message each way, and two passes over the samples, one for the mean
    gradient and one for the device's own correction.
    """
    zeros = jax.tree.map(np.zeros_like, params)
    sent = method.send(method.start(params), zeros if method.needs_gradients else None)
    reply = method.reply(
        Solution(
            anchor=params,
            params=params,
            steps=1,
            learning_rate=learning_rate,
            mu=0.0,
            solver=solver,
            sent=sent,
            state=method.start_device(params),
        )
    )
    down, up = bytes_of((params, sent)), bytes_of(method.uploaded(reply))
    if method.needs_gradients:
        return Traffic(down, up + bytes_of(params), messages=4, passes=2)
    return Traffic(down, up)
