"""What distinguishes one federated method from another; the loop calls nothing else of a method.

A round of any method: the server sends down the model w^t and what the method adds to it; each chosen device solves

    h_k(w) = F_k(w) + <c_k, w> + (mu_k / 2) ||w - a_k||^2

as far as its budget allows and replies; the server merges the replies. A method defines the linear term c_k, the anchor
a_k (w^t by default) and the device's mu_k, which devices are kept, what a device replies and remembers, and how the
server merges. The defaults below average the solutions:

    w^{t+1} = sum_k weight_k w_k
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.core.declared_fields import DeclaredFields
from fedprox.core.own_code import is_library_code
from fedprox.core.trees import Tree, difference
from fedprox.methods.device_view import DeviceView, Mu, Reply, Solution
from fedprox.methods.hook_marks import elementwise, is_standard, standard
from fedprox.participation.stragglers import Workload
from fedprox.solvers import Solver

__all__ = ["Method", "Received", "Reply", "Solution"]


class Received(NamedTuple):
    """A device's reply as the server has it, for methods and merge rules that see every reply."""

    device: int
    reply: Reply
    weight: float  # in the average; sums to 1 over the round
    mass: float  # p_k
    steps: int


@dataclass(frozen=True)
class Method(DeclaredFields):
    """A federated method. This one averages; others override what they do differently.

    A custom method is a dataclass that inherits from this one; the fields that it adds are its keys in `[method]`, and
    the fields below are what it declares:

    Attributes:
      name: its name in configs and records.
      proximal: whether `method.mu` acts in the subproblem.
      keeps_partial_work: whether stragglers' partial solutions are merged, or the stragglers dropped.
      needs_gradients: whether devices' gradients at w^t are averaged before the chosen ones start (FedDANE).
      needs_final_gradients: whether devices give gradients at their solutions (S-DANE).
      sends_model_only: whether devices send their model and nothing else, which is what privacy covers.
      needs_every_reply: whether the server merges the replies one by one (`merge_replies`), not from their sums.
      own_models: whether devices are measured with their own models (`device_model`) in place of w^t.
      personal_models: whether devices have a second model (`personal_model`), measured beside the first.
      wants_all_devices: whether its theory needs all devices in every round; with fewer there is a warning.
      adds_up_memory: whether the server adds up the changes of what devices remember, so that it holds their sum.
      sends_numbers: whether replies have single numbers besides parameters.
    """

    not_keys: ClassVar[frozenset[str]] = frozenset()

    name: str
    _: KW_ONLY
    proximal: bool = False
    keeps_partial_work: bool = True
    needs_gradients: bool = False
    needs_final_gradients: bool = False
    sends_model_only: bool = False
    needs_every_reply: bool = False
    own_models: bool = False
    personal_models: bool = False
    wants_all_devices: bool = False
    adds_up_memory: bool = False
    sends_numbers: bool = False

    @property
    def is_custom(self) -> bool:
        """Whether it is not one of this library, so that what its hooks return is checked."""
        return not is_library_code(self)

    @property
    def second_draw(self) -> bool:
        """Whether gradients come from a second draw of devices, not from the chosen ones."""
        return False

    @property
    def spends_budget(self) -> bool:
        """Whether a device solves one subproblem with all of its budget, as `work` does by default."""
        return is_standard(self.work)

    @property
    def mu_key(self) -> str:
        """The key of `[method]` that the proximal coefficient of the subproblem comes from."""
        return "mu"

    def check(self, solver: Solver) -> None:
        """Refuse a solver that the method cannot use."""

    def kept(self, work: Workload) -> NDArray[np.bool_]:
        """Return which listed devices take part in the merge."""
        return np.ones_like(work.straggler) if self.keeps_partial_work else ~work.straggler

    def subproblem_mu(self, mu: float) -> float:
        """Return the proximal coefficient of the subproblem, given `method.mu`."""
        return mu if self.proximal else 0.0

    def start(self, params: Tree) -> Tree:
        """Return the server's state before the first round."""
        return ()

    def start_device(self, params: Tree) -> Tree:
        """Return what a device remembers before it first takes part; None: nothing."""
        return None

    def centre(self, server: Tree, params: Tree) -> Tree:
        """Return the model that is sent down, at which gradients are taken: what devices see as w^t."""
        return params

    def send(self, server: Tree, mean_gradient: Tree) -> Tree:
        """Return what is sent down besides the model; `mean_gradient` is None where there is none."""
        return ()

    @elementwise
    def linear(self, sent: Tree, state: Tree, gradient: Tree) -> Tree:
        """Return c_k, or None for no linear term; `gradient` is grad F_k(w^t) if the method needs gradients."""
        return None

    @standard
    def anchor(self, sent: Tree, state: Tree, params: Tree) -> Tree:
        """Return a_k, or None for w^t; `params` is w^t, as the device received it."""
        return None

    @standard
    def device_mu(self, mu: float, sent: Tree, state: Tree, params: Tree) -> Mu:
        """Return the device's mu_k given the round's mu.

        One number, or numbers for groups of parameters: a mapping from patterns over their names, of which the first
        that matches counts, as in `{"output.*": 0.0, "*": mu}`.
        """
        return mu

    @standard
    def start_point(self, sent: Tree, state: Tree, params: Tree) -> Tree:
        """Return where a device's solver starts, or None for w^t."""
        return None

    @standard
    def work(self, device: DeviceView) -> Reply:
        """Return a device's reply after it has worked; the default solves one subproblem, that of the hooks above.

        If a method solves several, gamma and drift are measured for the first; their steps add up.
        """
        known = (device.sent, device.state, device.received)
        return self.reply(
            device.solve(
                anchor=self.anchor(*known),
                mu=self.device_mu(device.mu, *known),
                linear=self.linear(device.sent, device.state, device.gradient),
                start=self.start_point(*known),
            )
        )

    @elementwise
    @standard
    def reply(self, solution: Solution) -> Reply:
        """Return what a device sends back."""
        return Reply(solution.params)

    def unmoved(self, params: Tree) -> Tree:
        """Return what a device that did no work would send to be averaged; merge rules may start from it."""
        return params

    def shift(self, given: Tree, params: Tree) -> Tree:
        """Return what to add to the averaged part of a reply to the model `given` to make it one to the model `params`.

        A server that does not wait for every reply merges late ones as updates: w_k + (w^t - a_k).
        """
        return difference(self.unmoved(self.shared(params)), self.unmoved(self.shared(given)))

    def uploaded(self, reply: Reply) -> Tree:
        """Return the part of a reply that crosses the network; the server derives the rest."""
        return reply.averaged, reply.summed

    def shared(self, params: Tree) -> Tree:
        """Return the part of a model that devices and server exchange and the method works on."""
        return params

    def downloaded(self, params: Tree, sent: Tree) -> Tree:
        """Return what crosses the network on the way down, of w^t and what the method adds."""
        return params, sent

    def device_model(self, params: Tree, state: Tree) -> Tree:
        """Return the model that is measured on a device with `own_models`, given w^t and what it remembers."""
        return params

    def personal_model(self, params: Tree, state: Tree) -> Tree:
        """Return a device's second model with `personal_models`, given w^t and what it remembers."""
        return state

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Any) -> tuple[Tree, Tree]:
        """Return the new model and the server's new state from the merged replies."""
        return averaged, server

    def averaged_model(self, averaged: Tree | None, merged: Tree) -> Tree:
        """Return the average of the devices' models, for rules that use how far they agree.

        `averaged` is None where replies were not averaged; `merged` is the result of `merge`. They differ if the server
        takes a step of its own.
        """
        return merged

    def merge_replies(self, server: Tree, params: Tree, replies: Sequence[Received]) -> tuple[Tree, Tree]:
        """Return the new model and the server's new state from all replies; called with `needs_every_reply`."""
        raise NotImplementedError(f"the method {self.name!r} needs every reply, and so must override `merge_replies`")


Method.not_keys = frozenset(each.name for each in fields(Method))
