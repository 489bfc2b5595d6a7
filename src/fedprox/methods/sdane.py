"""S-DANE (Jiang, Rodomanov and Stich, "Stabilized Proximal-Point Methods for Federated Optimization", 2024).

DANE with a second sequence v^t of prox centres, at first w^0. As in FedDANE the round's devices first send gradients,

    g^t = sum_k weight_k grad F_k(v^t)

but at v^t, and each of them minimises, from v^t,

    h_k(w) = F_k(w) + <g^t - grad F_k(v^t), w> + (mu / 2) ||w - v^t||^2

as far as its budget allows. It sends w_k and its gradient there, and the server sets

    w^{t+1} = sum_k weight_k w_k,        v^{t+1} = v^t - (1 / mu) sum_k weight_k grad F_k(w_k)

Since the corrections cancel in the sum, v^{t+1} = w^{t+1} - (1 / mu) sum_k weight_k grad h_k(w_k): where the
subproblems are solved exactly this is FedDANE, and otherwise the centre compensates for the remaining error. So, unlike
in DANE, the accuracy need not increase during the run; it is enough that

    ||grad h_k(w_k)|| <= (mu / 2) ||w_k - v^t||

grad h_k(v^t) is g^t, so a device that is gamma-inexact (`solver.gamma`) meets it wherever gamma / (1 - gamma) <=
mu / (2 (L + mu)), with L the smoothness of F_k. mu must be positive, and large against how much the devices' second
derivatives differ.

Partial work is kept. The three gradients over all samples (for g^t, for the correction and at w_k) are not part of the
budget. Real devices send the one at w_k in a separate exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from fedprox.core.trees import Tree, difference, scale
from fedprox.methods.device_view import DeviceView
from fedprox.methods.method import Method, Reply
from fedprox.methods.positive_mu import PositiveMu, check_positive, positive_mu

__all__ = ["SDane"]


@dataclass(frozen=True)
class SDane(Method):
    """S-DANE: a gradient correction and a separate prox centre; partial work is kept.

    >>> averaged = {"model": np.float32(3), "step": np.float32(0.5)}
    >>> SDane().merge({"centre": np.float32(2)}, np.float32(0), averaged, ())
    (np.float32(3.0), {'centre': np.float32(1.5)})
    """

    name: str = field(default="sdane", init=False)
    proximal: bool = field(default=True, init=False)
    needs_gradients: bool = field(default=True, init=False)
    needs_final_gradients: bool = field(default=True, init=False)
    mu: PositiveMu = 1.0

    def __post_init__(self) -> None:
        check_positive(self.mu)

    def subproblem_mu(self, mu: float) -> float:
        """Return mu, which must be positive."""
        return positive_mu(mu, self.mu)

    def start(self, params: Tree) -> Tree:
        """Return v."""
        return {"centre": params}

    def centre(self, server: Tree, params: Tree) -> Tree:
        """Return v, which is sent down in place of w."""
        return server["centre"]

    def send(self, server: Tree, mean_gradient: Tree) -> Tree:
        """Send g down."""
        return mean_gradient

    def work(self, device: DeviceView) -> Reply:
        """Send w_k, and the step of the centre from the gradient there."""
        linear = None if device.sent is None else difference(device.sent, device.gradient)
        found = device.solve(linear=linear).params
        return Reply({"model": found, "step": scale(device.gradient_at(found), 1 / device.mu)})

    def unmoved(self, params: Tree) -> Tree:
        """Return the model, and no step."""
        return {"model": params, "step": jax.tree.map(np.zeros_like, params)}

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Average the w_k, and move the centre."""
        return averaged["model"], {"centre": difference(server["centre"], averaged["step"])}
