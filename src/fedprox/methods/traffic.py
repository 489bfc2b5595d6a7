"""What a round sends over the network, in bytes per device.

The model w^t and what the method adds to it are sent down, the device's reply is sent up. The sizes are those of the
trees that `Method.send` and `Method.work` actually return, so that SCAFFOLD's control variates or FedDANE's gradients
count. They do not change over the rounds.
"""

from __future__ import annotations

import jax
import numpy as np

from fedprox.core.trees import Tree
from fedprox.methods.custom_checks import checked_reply
from fedprox.methods.device_view import DeviceView
from fedprox.methods.method import Method
from fedprox.participation.traffic import Traffic
from fedprox.solvers import Solver

__all__ = ["count_bytes", "measure_traffic"]


def count_bytes(tree: Tree) -> int:
    """Return the bytes of all arrays of a tree.

    >>> count_bytes({"weight": np.zeros((10, 60), np.float32), "bias": np.zeros(10, np.float32)})
    2440
    """
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))


def measure_traffic(method: Method, params: Tree, solver: Solver, *, learning_rate: float) -> Traffic:
    """Return the traffic of a method, found by letting it send and reply once.

    FedDANE gathers gradients first: another message each way, and two passes over the samples, one for the mean
    gradient and one for the device's own correction. S-DANE takes a third, at the device's solution.
    """
    zeros = jax.tree.map(np.zeros_like, params)
    sent = method.send(method.start(params), zeros if method.needs_gradients else None)
    further: list[Tree] = []  # models besides w^t at which the device gives gradients

    def gradient_at(at: Tree) -> Tree:
        further.append(at)
        return zeros

    device = DeviceView(
        received=params,
        sent=sent,
        state=method.start_device(params),
        gradient=zeros if method.needs_gradients else None,
        mu=method.subproblem_mu(0.0),
        budget=1,
        learning_rate=learning_rate,
        solver=solver,
        pose=lambda posed, budget: (params, budget),
        gradient_at=gradient_at,
    )
    reply = checked_reply(method, method.work(device), device.state)
    down, up = count_bytes(method.downloaded(params, sent)), count_bytes(method.uploaded(reply))
    if method.needs_gradients:
        return Traffic(down, up + count_bytes(method.shared(params)), messages=4, passes=2 + len(further))
    return Traffic(down, up)
