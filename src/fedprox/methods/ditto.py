"""Ditto (Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", 2021).

A personal model v_k on every device, drawn towards the shared model by the proximal term. The shared one is FedProx's:
each chosen device minimises

    F_k(w) + (mu / 2) ||w - w^t||^2        from w^t

as far as its budget allows, and the server averages. Then the device minimises, with the same budget again,

    F_k(v) + (personal_mu / 2) ||v - w^t||^2        from v_k

and keeps the result as v_k. v_k starts at the first model that the device receives. `personal_mu` is the source's
lambda: with 0 a device trains alone, and the larger it is the closer v_k stays to w^t. The shared model does not depend
on the personal ones: it is that of FedProx (mu = 0: FedAvg with partial work) bit for bit.

Partial work is kept, of both models. A device that fails keeps its v_k. Nothing but the shared model is sent in a
simulation; the server of real devices keeps what they remember, v_k too, so `[privacy]` is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.config.fields import NotNegative
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.methods.device_view import DeviceView
from fedprox.methods.method import Method, Reply

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(Method):
    """Ditto: FedProx, and a personal model on every device; partial work is kept.

    >>> Ditto().personal_mu, Ditto().personal_models
    (0.1, True)
    """

    name: str = field(default="ditto", init=False)
    proximal: bool = field(default=True, init=False)
    personal_models: bool = field(default=True, init=False)
    personal_mu: NotNegative = 0.1

    def __post_init__(self) -> None:
        if not self.personal_mu >= 0:
            raise ConfigError(f"`method.personal_mu` must be a number >= 0; got {self.personal_mu!r}")

    def start_device(self, params: Tree) -> Tree:
        """Return v_k."""
        return params

    def work(self, device: DeviceView) -> Reply:
        """Solve for the shared model, then for the personal one."""
        shared = device.solve()
        own = device.solve(start=device.state, anchor=device.received, mu=self.personal_mu)
        return Reply(shared.params, state=own.params)
